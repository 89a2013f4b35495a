/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/cpu/copy.h"

#include <stdint.h>
#include <string.h>

/* ThreadSanitizer does not see what intrinsics touch; memcpy it does. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ONLY_MEMCPY
#endif
#endif

#if defined(__x86_64__) && !defined(ONLY_MEMCPY)
#define HAS_WIDE_COPIES
#include <immintrin.h>

/* Rows of less than a register are left to memcpy; the rest of a longer one is copied once more from its end, which is
 * cheaper than masks. */
__attribute__((target("avx512f"))) static void copy_avx512(void *to, const void *from, size_t bytes) {
    char *t = to;
    const char *f = from;
    size_t i = 0;
    if (bytes < 64) {
        memcpy(to, from, bytes);
        return;
    }
    for (; i + 256 <= bytes; i += 256) {
        __m512i a = _mm512_loadu_si512(f + i), b = _mm512_loadu_si512(f + i + 64);
        __m512i c = _mm512_loadu_si512(f + i + 128), d = _mm512_loadu_si512(f + i + 192);
        _mm512_storeu_si512(t + i, a);
        _mm512_storeu_si512(t + i + 64, b);
        _mm512_storeu_si512(t + i + 128, c);
        _mm512_storeu_si512(t + i + 192, d);
    }
    for (; i + 64 <= bytes; i += 64)
        _mm512_storeu_si512(t + i, _mm512_loadu_si512(f + i));
    if (i < bytes)
        _mm512_storeu_si512(t + bytes - 64, _mm512_loadu_si512(f + bytes - 64));
}

__attribute__((target("avx2"))) static void copy_avx2(void *to, const void *from, size_t bytes) {
    char *t = to;
    const char *f = from;
    size_t i = 0;
    if (bytes < 32) {
        memcpy(to, from, bytes);
        return;
    }
    for (; i + 128 <= bytes; i += 128) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(f + i)), b = _mm256_loadu_si256((const __m256i *)(f + i + 32));
        __m256i c = _mm256_loadu_si256((const __m256i *)(f + i + 64)),
                d = _mm256_loadu_si256((const __m256i *)(f + i + 96));
        _mm256_storeu_si256((__m256i *)(t + i), a);
        _mm256_storeu_si256((__m256i *)(t + i + 32), b);
        _mm256_storeu_si256((__m256i *)(t + i + 64), c);
        _mm256_storeu_si256((__m256i *)(t + i + 96), d);
    }
    for (; i + 32 <= bytes; i += 32)
        _mm256_storeu_si256((__m256i *)(t + i), _mm256_loadu_si256((const __m256i *)(f + i)));
    if (i < bytes)
        _mm256_storeu_si256((__m256i *)(t + bytes - 32), _mm256_loadu_si256((const __m256i *)(f + bytes - 32)));
}
#endif

static void copy_memcpy(void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
}

hsp__copy_fn hsp__copy_choose(const char **name_out) {
    const char *name = "memcpy";
    hsp__copy_fn copy = copy_memcpy;
#ifdef HAS_WIDE_COPIES
    if (__builtin_cpu_supports("avx512f"))
        name = "avx512", copy = copy_avx512;
    else if (__builtin_cpu_supports("avx2"))
        name = "avx2", copy = copy_avx2;
#endif
    if (name_out)
        *name_out = name;
    return copy;
}
