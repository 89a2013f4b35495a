/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a GPU and waiting for it. Functions return 0, or -1 with a sentence in error(). */
#ifndef HISPARSE_GPU_MEMORY_H
#define HISPARSE_GPU_MEMORY_H

#include <stddef.h>

typedef struct gpu_memory {
    const char *(*error)(void); /* of the last call of this thread that failed */
    int (*device_name)(char *name_out, size_t bytes);
    int (*alloc)(size_t bytes, void **memory_out);         /* on the GPU */
    int (*alloc_shared)(size_t bytes, void **memory_out);  /* pinned, at the same address for the GPU and for the CPU */
    void (*release)(void *memory);                         /* either; NULL is allowed */
    int (*copy)(void *to, const void *from, size_t bytes); /* in any direction; waits */
    int (*wait)(void);                                     /* for all work of the device */
} gpu_memory;

#define GPU_MEMORY "gpu_memory_table"

#endif
