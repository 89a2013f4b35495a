/* SPDX-License-Identifier: Apache-2.0
 *
 * How the indexer's numbers lie for the tensor cores. Plain index arithmetic, which the host's tests compile as well.
 *
 * A product of 16 keys (or 64) with the heads is made in steps of 16 channels. Which 16 is free, as long as keys and
 * query agree: a thread of the product holds 4 of them, and here these are channels that lie together in the key, so
 * that shared memory is read in whole words, without conflicts. Thread `quad` (lane % 4) has in step s the channels
 * hsp__dsa_channel(dtype, s, half, quad, 0 and 1) for half 0 and 1; in the order of the hardware they are numbers
 * 8 * half + 2 * quad + 0 and 1 of the step's 16.
 *
 * e4m3: word 8 * quad + s of the key is one step. With rows of 33 words, 8 rows and 4 quads touch 32 banks.
 * bf16: 16-byte pieces 2 * quad + (0, 1) + (0, 8) are two steps each. Rows of 256 bytes would meet in the same banks,
 * so odd rows read their pairs of pieces in the other order.
 *
 * Keys become f16 (e4m3, exactly) or stay bf16; the query is packed in that format, heads in groups of `heads`, a group
 * in two panels of four steps each: a panel is [heads][128 bytes], whose 16-byte pieces are swizzled as the tensor
 * core's descriptors name it, piece p of row r at p ^ r % 8. After the groups come the weights, float [groups * heads].
 */
#ifndef HSP_OPS_CUDA_DSA_LAYOUT_H
#define HSP_OPS_CUDA_DSA_LAYOUT_H

#include "hisparse_ops.h"

#include "ranks.cuh"

enum { HSP__DSA_DIM = 128, HSP__DSA_STEPS = 8, HSP__DSA_PANEL_ROW = 128, HSP__DSA_MOST_GROUPS = 4 };

/* Channel of the key that is number `half`, `quad`, `odd` of step s. */
HSP__BOTH int hsp__dsa_channel(int dtype, int s, int half, int quad, int odd) {
    if (dtype == HSP_E4M3)
        return 32 * quad + 4 * s + 2 * half + odd;
    int t = s / 2, piece = 2 * quad + (t & 1) + 8 * (t >> 1);
    return 8 * piece + 4 * (s & 1) + 2 * half + odd;
}

/* The other way round: which number is channel c? */
HSP__BOTH void hsp__dsa_number(int dtype, int c, int *s, int *half, int *quad, int *odd) {
    int piece = c / 8;
    *odd = c & 1;
    *half = c >> 1 & 1;
    *quad = dtype == HSP_E4M3 ? c / 32 : piece % 8 / 2;
    *s = dtype == HSP_E4M3 ? c / 4 % 8 : 2 * ((piece & 1) + piece / 8 * 2) + (c >> 2 & 1);
}

/* Where that number of head `row` of a group lies in the group's image, in bytes. */
HSP__BOTH int hsp__dsa_place(int heads, int row, int s, int half, int quad, int odd) {
    int panel = s / (HSP__DSA_STEPS / 2), piece = 2 * (s % (HSP__DSA_STEPS / 2)) + half;
    return (panel * heads + row) * HSP__DSA_PANEL_ROW + (piece ^ (row & 7)) * 16 + 4 * quad + 2 * odd;
}

/* Heads of a group: the tensor cores take 32 or 64 at a time. */
HSP__BOTH int hsp__dsa_group_heads(int n_heads) {
    return n_heads <= 32 ? 32 : 64;
}

HSP__BOTH int hsp__dsa_group_count(int n_heads) {
    int heads = hsp__dsa_group_heads(n_heads);
    return (n_heads + heads - 1) / heads;
}

/* Can the tensor cores have it? Otherwise every product is made with plain multiplications. */
HSP__BOTH int hsp__dsa_is_fast(int n_heads, int head_dim) {
    return head_dim == HSP__DSA_DIM && hsp__dsa_group_count(n_heads) <= HSP__DSA_MOST_GROUPS;
}

/* Bytes of a group's numbers. */
HSP__BOTH int hsp__dsa_group_bytes(int heads) {
    return 2 * heads * HSP__DSA_PANEL_ROW;
}

/* Bytes before the weights, and of everything. Without tensor cores: numbers as in a key, head by head. */
HSP__BOTH size_t hsp__dsa_numbers_bytes(int n_heads, int head_dim, int dtype) {
    int heads = hsp__dsa_group_heads(n_heads);
    if (hsp__dsa_is_fast(n_heads, head_dim))
        return (size_t)hsp__dsa_group_count(n_heads) * hsp__dsa_group_bytes(heads);
    return (size_t)n_heads * head_dim * (dtype == HSP_E4M3 ? 1 : 2);
}

HSP__BOTH size_t hsp__dsa_image_bytes(int n_heads, int head_dim, int dtype) {
    size_t numbers = hsp__dsa_numbers_bytes(n_heads, head_dim, dtype);
    size_t weights = hsp__dsa_is_fast(n_heads, head_dim)
                         ? (size_t)hsp__dsa_group_count(n_heads) * hsp__dsa_group_heads(n_heads)
                         : (size_t)n_heads;
    return (numbers + weights * sizeof(float) + 1023) / 1024 * 1024; /* the swizzle goes by the address */
}

#endif
