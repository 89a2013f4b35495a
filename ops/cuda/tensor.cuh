/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensor cores and the copy engine, one device function an instruction. WGMMA says whether this compilation has the
 * warpgroup's matrix product; other GPUs make it out of the warp's.
 */
#ifndef HSP_OPS_CUDA_TENSOR_CUH
#define HSP_OPS_CUDA_TENSOR_CUH

#include <stdint.h>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WGMMA 1
#else
#define WGMMA 0
#endif

static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ------------------------------------------------------------------------------------------- copies and barriers -- */

static __device__ __forceinline__ void barrier_init(uint64_t *barrier, uint32_t n_arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(n_arrivals) : "memory");
}

/* Initialised barriers become visible to the copy engine; a barrier of the block's threads must follow. */
static __device__ __forceinline__ void barriers_ready(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void barrier_expect(uint64_t *barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void barrier_wait(uint64_t *barrier, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}\n" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

/* What is read once gives way in the L2 to what a later kernel reads again. */
static __device__ __forceinline__ uint64_t read_once(void) {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* Both addresses and the size are multiples of 16. */
static __device__ __forceinline__ void copy_bulk(void *to, const void *from, uint32_t bytes, uint64_t *barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

static __device__ __forceinline__ void copy_bulk_once(void *to, const void *from, uint32_t bytes, uint64_t *barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
                 "[%3], %4;" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(read_once())
                 : "memory");
}

static __device__ __forceinline__ uint4 load_once(const unsigned char *from, uint64_t policy) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from), "l"(policy));
    return v;
}

/* Bytes and address are multiples of 16. */
static __device__ __forceinline__ void fetch_to_l2(const void *from, uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

/* ------------------------------------------------------------------------------------------------ matrix products --
 */

/* d += a b, 16 rows times 8 columns over 16 channels. F16 or bf16. */
template <bool F16>
static __device__ __forceinline__ void multiply_warp(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    if (F16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#if WGMMA
/* Rows of 128 bytes in groups of eight, 1024 bytes apart, swizzled over 128 bytes. The address is in units of 16. */
static __device__ __forceinline__ uint64_t panel_descriptor(uint32_t address) {
    return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)64 << 32 | (uint64_t)1 << 62;
}

/* What this thread has stored in shared memory, products of warpgroups may read after the next barrier. */
static __device__ __forceinline__ void shared_written(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* The compiler knows nothing of products that are under way: what they read must be there before wgmma_begin, and what
 * they write must not be used before wgmma_end. */
template <int N>
static __device__ __forceinline__ void hold(float d[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

static __device__ __forceinline__ void wgmma_begin(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_end(void) {
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
}

#define FOUR(d, i)    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(d, i) FOUR(d, i), FOUR(d, i + 4), FOUR(d, i + 8), FOUR(d, i + 12)
#define WGMMA_64(type)                                                                                                 \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                           \
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"    \
                 "%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1, 0;"                                       \
                 : SIXTEEN(d, 0), SIXTEEN(d, 16)                                                                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor))
#define WGMMA_32(type)                                                                                                 \
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type                                           \
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, 1, 1, 1, 0;"       \
                 : SIXTEEN(d, 0)                                                                                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor))

#define WGMMA_48                                                                                                       \
    asm volatile("wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16"                                                \
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23},"           \
                 " {%24,%25,%26,%27}, %28, 1, 1, 1, 0;"                                                                \
                 : SIXTEEN(d, 0), FOUR(d, 16), FOUR(d, 20)                                                             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor))
#define WGMMA_24                                                                                                       \
    asm volatile("wgmma.mma_async.sync.aligned.m64n24k16.f32.bf16.bf16"                                                \
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11}, {%12,%13,%14,%15}, %16, 1, 1, 1, 0;"                       \
                 : FOUR(d, 0), FOUR(d, 4), FOUR(d, 8)                                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor))

/* d += a b, 64 rows times `heads` columns over 16 channels, by a warpgroup; between wgmma_begin and wgmma_end. 48 and
 * 24 columns are of bf16 alone. */
template <bool F16, int HEADS>
static __device__ __forceinline__ void multiply_group(float d[HEADS / 2], const uint32_t a[4], uint64_t descriptor) {
    if constexpr (HEADS == 64 && F16)
        WGMMA_64("f16");
    else if constexpr (HEADS == 64)
        WGMMA_64("bf16");
    else if constexpr (HEADS == 48)
        WGMMA_48;
    else if constexpr (HEADS == 24)
        WGMMA_24;
    else if constexpr (F16)
        WGMMA_32("f16");
    else
        WGMMA_32("bf16");
}
#endif

#endif
