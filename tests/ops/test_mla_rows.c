/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of the row formats of MLA, read and written, against rows made by hand.
 */
#include "mla_problem.h"

/* One row alone has the weight 1, and a query of zeros the score 0: the result is the row as read. */
static void read_one(const hsp_mla_shape *shape, const hsp_plane_view *planes, float *out) {
    const int32_t id = 0;
    size_t bytes;
    assert_int_equal(hsp_mla_scratch(shape, 1, &bytes), HSP_OK);
    float *scratch = allocate(bytes), query[576] = {0};
    assert_int_equal(hsp_mla_attend(shape, planes, query, &id, 1, 1, NULL, out, NULL, scratch), HSP_OK);
    free(scratch);
}

static void reads_scales_that_are_no_powers_of_two(void **state) {
    (void)state;
    const float scales[4] = {0.3f, -1.7e-3f, 5e4f, 0.0f};
    uint8_t row[656] = {0};
    float out[512];
    const hsp_plane_view plane = {row, 656, 656, 656, 1, 0};
    for (int c = 0; c < 512; c++)
        row[c] = (uint8_t)(c % 256 & 0x7f) == 0x7f ? 0xfe : (uint8_t)(c % 256);
    memcpy(row + 512, scales, sizeof scales);
    read_one(&fp8_shape, &plane, out);
    for (int c = 0; c < 512; c++)
        assert_true(out[c] == e4m3_value(row[c]) * scales[c / 128]);
}

/* The least scale, 2^-127, and the greatest, 2^127; the value has the rope in it; 255 is NaN; the pad byte is not read
 * as a scale. */
static void reads_two_planes(void **state) {
    (void)state;
    const float rope[2] = {-1.5f, 0x1p-126f};
    uint8_t row[576] = {0}, scales[8] = {127, 0, 254, 1, 120, 135, 128, 255};
    float out[512];
    const hsp_plane_view planes[2] = {{row, 576, 576, 576, 1, 0}, {scales, 8, 8, 8, 1, 0}};
    for (int c = 0; c < 448; c++)
        row[c] = c / 64 == 2 ? 0 : (uint8_t)(0x81 + c % 64 * 2 % 0x7e);
    row[128] = 0x38; /* 1 */
    assert_int_equal(hsp_pack(HSP_BF16, rope, 2, row + 448), HSP_OK);
    read_one(&v4_shape, planes, out);
    for (int c = 0; c < 448; c++)
        assert_true(out[c] == e4m3_value(row[c]) * (float)ldexp(1.0, scales[c / 64] - 127));
    assert_true(out[128] == 0x1p127f && out[64] == -0x1p-136f && out[448] == -1.5f && out[449] == 0x1p-126f);
    scales[6] = 255;
    read_one(&v4_shape, planes, out);
    assert_true(isnan(out[384]) && isnan(out[0])); /* its score is NaN too, and so is every weight */
}

/* Groups with amax 448, just above it, 0 and 1; NaN and infinity beside 3; the code of x is x over 2^k. */
static void fill_groups(float *row, int group) {
    for (int c = 0; c < 576; c++)
        row[c] = 0.0f;
    row[0] = 448.0f;
    row[1] = -1.0f;
    row[group] = nextafterf(448.0f, 449.0f);
    row[group + 1] = -2.0f;
    row[3 * group] = NAN;
    row[3 * group + 1] = -INFINITY;
    row[3 * group + 2] = 3.0f;
}

static void packs_fp8_as_published(void **state) {
    (void)state;
    const float scales[4] = {1.0f, 2.0f, 0x1p-22f, 0x1p-7f};
    float row[576];
    uint8_t bytes[657], expected[656] = {0};
    const hsp_plane_view plane = {bytes + 1, 656, 656, 656, 1, 0};
    fill_groups(row, 128);
    row[512] = 1.0f;
    row[575] = -2.0f;
    memset(bytes, 0xee, sizeof bytes);
    assert_int_equal(hsp_mla_pack_rows(&fp8_shape, row, 0, 1, &plane), HSP_OK);
    expected[0] = 0x7e;                                   /* 448 */
    expected[1] = 0xb8;                                   /* -1 */
    expected[128] = 0x76;                                 /* 224 */
    expected[129] = 0xb8;                                 /* -2 over 2 */
    expected[384] = bytes[1 + 384], expected[385] = 0xff; /* a NaN may have either sign */
    expected[386] = 0x7c;                                 /* 384: 3 over 2^-7 */
    memcpy(expected + 512, scales, sizeof scales);
    expected[528] = 0x80, expected[529] = 0x3f;
    expected[655] = 0xc0;
    assert_memory_equal(bytes + 1, expected, 656);
    assert_true(bytes[0] == 0xee && (bytes[385] & 0x7f) == 0x7f);
}

static void packs_v4_in_two_planes(void **state) {
    (void)state;
    const uint8_t scales[8] = {127, 128, 105, 120, 105, 105, 119, 0};
    uint8_t block[2 * 576 + 2 * 8], expected[sizeof block];
    float row[576];
    const hsp_plane_view planes[2] = {{block, 576, 576, sizeof block, 2, 0}, {block + 1152, 8, 8, sizeof block, 2, 0}};
    fill_groups(row, 64);
    row[6 * 64] = 1.0f;
    row[448] = 1.0f;
    memset(block, 0xee, sizeof block);
    assert_int_equal(hsp_mla_pack_rows(&v4_shape, row, 1, 1, planes), HSP_OK);
    memset(expected, 0xee, sizeof expected); /* row 0 is not touched */
    memset(expected + 576, 0, 576);
    memcpy(expected + 1152 + 8, scales, 8);
    uint8_t *codes = expected + 576;
    codes[0] = 0x7e, codes[1] = 0xb8, codes[64] = 0x76, codes[65] = 0xb8;
    codes[192] = block[576 + 192], codes[193] = 0xff, codes[194] = 0x7c;
    codes[384] = 0x78; /* 256: 1 over 2^-8 */
    codes[448] = 0x80, codes[449] = 0x3f;
    assert_memory_equal(block, expected, sizeof block);
}

/* Half a place of e4m3: 2^-4 of a number, and no less than half of 2^-9 scales. */
static void packing_is_near(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct problem p;
        uint64_t seed = 77;
        make_problem(&p, &(struct mla_case){i / 2, 1, 256, 64, 1, 0, 200, 64, i % 2 ? 3 : 0}, 12);
        size_t n = (size_t)p.n_slots * (size_t)p.key_dim;
        float *rows = random_floats(n, 1.0f, &seed);
        for (size_t c = 0; c < n; c++)
            rows[c] *= ldexpf(1.0f, random_below(&seed, 12) - 6);
        assert_int_equal(hsp_mla_pack_rows(&p.shape, rows, 0, p.n_slots, p.planes), HSP_OK);
        for (int32_t id = 0; id < p.n_slots; id++) {
            const float *row = rows + (size_t)id * (size_t)p.key_dim;
            read_row(&p, id, p.keys);
            for (int32_t c = 0; c < p.key_dim; c++) {
                int fp8 = c < p.shape.latent_dim && p.shape.format != HSP_MLA_BF16;
                float error = fabsf(row[c] - p.keys[c]), least = fp8 ? 64.0f / 448.0f * 0x1p-10f : 0.0f;
                assert_true(error <= fmaxf(fabsf(row[c]) * (fp8 ? 0x1p-4f : 0x1p-8f), least));
            }
        }
        free(rows);
        free_problem(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_scales_that_are_no_powers_of_two),
        cmocka_unit_test(reads_two_planes),
        cmocka_unit_test(packs_fp8_as_published),
        cmocka_unit_test(packs_v4_in_two_planes),
        cmocka_unit_test(packing_is_near),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
