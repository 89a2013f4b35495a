/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/host_tier.h"

#include "alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The file is ours alone and has no name once it is mapped, so nothing is left behind however the process ends. */
static int open_file(hsp__host_tier *tier, const char *path, hsp__error *error) {
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return hsp__fail(error, HSP_EIO, "host_file '%.160s': %s", path, strerror(errno));
    unlink(path);
    int failed = posix_fallocate(fd, 0, (off_t)tier->bytes);
    if (failed) {
        close(fd);
        return hsp__fail(error, HSP_EIO, "host_file '%.160s': no room for %llu bytes: %s", path,
                         (unsigned long long)tier->bytes, strerror(failed));
    }
    void *base = mmap(NULL, tier->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int mapping = errno;
    close(fd);
    if (base == MAP_FAILED)
        return hsp__fail(error, HSP_EIO, "host_file '%.160s': cannot map %llu bytes: %s", path,
                         (unsigned long long)tier->bytes, strerror(mapping));
    tier->base = base;
    return HSP_OK;
}

int hsp__host_tier_open(hsp__host_tier *tier, const hsp_config *config, uint64_t bytes, hsp__error *error) {
    *tier = (hsp__host_tier){.bytes = bytes, .is_file = config->host_file[0] != 0};
    if (tier->is_file)
        return open_file(tier, config->host_file, error);
    tier->base = hsp__map(bytes, config->huge_pages);
    if (!tier->base)
        return hsp__fail(error, HSP_ENOMEM, "cannot have %llu bytes of memory for the host pool",
                         (unsigned long long)bytes);
    tier->huge_pages = config->huge_pages && hsp__has_huge_pages(tier->base);
    return HSP_OK;
}

void hsp__host_tier_close(hsp__host_tier *tier) {
    if (!tier->base)
        return;
    if (tier->is_file)
        munmap(tier->base, tier->bytes);
    else
        hsp__unmap(tier->base, tier->bytes);
    tier->base = NULL;
}
