/* SPDX-License-Identifier: Apache-2.0
 *
 * Which of the compiled kernel tables this machine runs: the widest it can.
 */
#include "kernels.h"

#include <stdatomic.h>
#include <string.h>

extern const struct hsp__kernels hsp__kernels_baseline;

#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>

extern const struct hsp__kernels hsp__kernels_avx2, hsp__kernels_avx512;

/* clang 14 has no name for it in __builtin_cpu_supports. */
static int has_f16c(void) {
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

static int can_run_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static int can_run_avx512(void) {
    return can_run_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

/* The best table of that name (NULL: of any name) that can run here, or NULL. */
static const struct hsp__kernels *choose(const char *name) {
#if defined(__x86_64__) || defined(_M_X64)
    __builtin_cpu_init();
    if ((!name || strcmp(name, "avx512") == 0) && can_run_avx512())
        return &hsp__kernels_avx512;
    if ((!name || strcmp(name, "avx2") == 0) && can_run_avx2())
        return &hsp__kernels_avx2;
#endif
    return !name || strcmp(name, "baseline") == 0 ? &hsp__kernels_baseline : NULL;
}

/* Threads that race to the first call all store the same address. */
static const struct hsp__kernels *_Atomic chosen;

const struct hsp__kernels *hsp__ops(void) {
    const struct hsp__kernels *kernels = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (!kernels) {
        kernels = choose(NULL);
        atomic_store_explicit(&chosen, kernels, memory_order_relaxed);
    }
    return kernels;
}

int hsp__ops_force_target(const char *name) {
    const struct hsp__kernels *kernels = choose(name);
    if (!kernels)
        return -1;
    atomic_store_explicit(&chosen, kernels, memory_order_relaxed);
    return 0;
}

const char *hsp_ops_target(void) {
    return hsp__ops()->name;
}
