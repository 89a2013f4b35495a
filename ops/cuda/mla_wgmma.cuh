/* SPDX-License-Identifier: Apache-2.0
 *
 * Instructions of compute capability 9.0a that MLA attention uses: barriers in shared memory, and products of a
 * warpgroup (wgmma) with the second operand, or both, in shared memory.
 *
 * Operands are columns of 64 bf16, 128 bytes from row to row, 1024 bytes for eight rows; piece p of 16 bytes of row r
 * lies at p ^ (r % 8), the 128-byte swizzle. In a descriptor (PTX, "matrix descriptor"): bits 0-13 address / 16, bits
 * 16-29 leading offset / 16, bits 32-45 stride offset / 16, bits 62-63 swizzle, 1 for 128 bytes.
 */
#ifndef HSP_MLA_WGMMA_CUH
#define HSP_MLA_WGMMA_CUH

#include "attention.cuh"

/* ---------------------------------------------------------------------------------------------------- barriers -- */

static __device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/* After all inits, before others are let past a meeting. */
static __device__ __forceinline__ void barriers_ready(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}

/* Wait for the end of the phase whose parity is given; that of a phase before the first is 1. */
static __device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    do
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    while (!done);
}

/* An arrival of this thread once all its copies so far are there. */
static __device__ __forceinline__ void barrier_arrive_copied(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/* A meeting of THREADS threads of a block; id from 1 on. */
template <int THREADS>
static __device__ __forceinline__ void group_sync(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

/* LAUNCHED: what the kernel begins with. */
template <int N, int LAUNCHED>
static __device__ __forceinline__ void take_registers(void) {
    if (N > LAUNCHED)
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
    else
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* What this thread has stored, or what others have stored and told it of, may be read by wgmma, its own or that of
 * those it tells. */
static __device__ __forceinline__ void publish_stores(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Four fragments of 8 x 8, of which lane l names row l % 8 of fragment l / 8. */
static __device__ __forceinline__ void store_matrix(uint32_t to, const uint32_t *r) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r[0]), "r"(r[1]),
                 "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* ---------------------------------------------------------------------------------------------------- products -- */

/* Bits 24 and on of a shared address say which block of the cluster it is in; left in, they would end up in the leading
 * offset. column_bytes, the leading offset: from column to column where rows are what is summed over (V in P V); an
 * operand that is summed along its rows is within one column, and the offset is not used. The stride offset leads to
 * the next eight rows either way. */
static __device__ __forceinline__ uint64_t operand_at(uint32_t address, uint32_t column_bytes) {
    return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)(column_bytes >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

static __device__ __forceinline__ void products_begin(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void products_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* For all but the latest LEFT groups of products. */
template <int LEFT>
static __device__ __forceinline__ void products_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* d: 64 x 64, rows of a by rows of b, 16 channels; `add` 0: d is not read. */
static __device__ __forceinline__ void product_64(float (&d)[32], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, p, 1, 1, 0, 0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
                   "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31])
                 : "l"(a), "l"(b), "r"(add));
}

#define FOUR(d, i)    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(d, i) FOUR(d, i), FOUR(d, i + 4), FOUR(d, i + 8), FOUR(d, i + 12)
#define PRODUCT_128                                                                                                    \
    "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"                                                          \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                           \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                                 \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                                 \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "

/* d += 64 x 128, 16 rows of b. */
static __device__ __forceinline__ void product_128(float (&d)[64], uint64_t a, uint64_t b) {
    asm volatile(PRODUCT_128 "%64, %65, 1, 1, 1, 0, 1;"
                 : SIXTEEN(d, 0), SIXTEEN(d, 16), SIXTEEN(d, 32), SIXTEEN(d, 48)
                 : "l"(a), "l"(b));
}

/* The same with 64 x 16 of a in registers, which must stay as they are until the products are waited for. */
static __device__ __forceinline__ void product_128(float (&d)[64], const uint32_t *a, uint64_t b) {
    asm volatile(PRODUCT_128 "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : SIXTEEN(d, 0), SIXTEEN(d, 16), SIXTEEN(d, 32), SIXTEEN(d, 48)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef PRODUCT_128
#undef SIXTEEN
#undef FOUR

#endif
