/* SPDX-License-Identifier: Apache-2.0 */
/* Every tensor type against its definition, number by number: where the bits of number i are, and what they mean. */
#include "gguf.h"
#include "with_cmocka.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_BLOCKS = 50, MAX_BLOCK_BYTES = 210 };

static float half(const uint8_t *p) {
    int bits = p[0] | p[1] << 8, exponent = bits >> 10 & 31, fraction = bits & 1023;
    double magnitude = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return (float)(bits & 0x8000 ? -magnitude : magnitude);
}

/* Bits [first, first + n) of the bytes, lowest first. */
static int bits_at(const uint8_t *p, int first, int n) {
    int value = 0;
    for (int i = 0; i < n; i++)
        value |= (p[(first + i) / 8] >> (first + i) % 8 & 1) << i;
    return value;
}

/* Low four bits of number i of 32: halves of the block share bytes. */
static int nibble(const uint8_t *p, int i) {
    return bits_at(p, i % 16 * 8 + i / 16 * 4, 4);
}

static float number_q8_0(const uint8_t *p, int i) {
    return half(p) * (float)(int8_t)p[2 + i];
}

static float number_q4_0(const uint8_t *p, int i) {
    return half(p) * (float)(nibble(p + 2, i) - 8);
}

static float number_q4_1(const uint8_t *p, int i) {
    return half(p) * (float)nibble(p + 4, i) + half(p + 2);
}

static float number_q5_0(const uint8_t *p, int i) {
    return half(p) * (float)(nibble(p + 6, i) + 16 * bits_at(p + 2, i, 1) - 16);
}

static float number_q5_1(const uint8_t *p, int i) {
    return half(p) * (float)(nibble(p + 8, i) + 16 * bits_at(p + 4, i, 1)) + half(p + 2);
}

/* Scale (which 0) or minimum (which 1) of sub-block s in the 12 bytes of Q4_K and Q5_K. */
static int k_scale(const uint8_t *p, int s, int which) {
    if (s < 4)
        return bits_at(p + 4 * which + s, 0, 6);
    return bits_at(p + 8 + s - 4, 4 * which, 4) + 16 * bits_at(p + 4 * which + s - 4, 6, 2);
}

static float k_number(const uint8_t *p, int s, int q) {
    return half(p) * (float)k_scale(p + 4, s, 0) * (float)q - half(p + 2) * (float)k_scale(p + 4, s, 1);
}

static int k_nibble(const uint8_t *p, int i) {
    return bits_at(p + i / 64 * 32 + i % 32, i / 32 % 2 * 4, 4);
}

static float number_q4_k(const uint8_t *p, int i) {
    return k_number(p, i / 32, k_nibble(p + 16, i));
}

static float number_q5_k(const uint8_t *p, int i) {
    return k_number(p, i / 32, k_nibble(p + 48, i) + 16 * bits_at(p + 16 + i % 32, i / 32, 1));
}

static float number_q6_k(const uint8_t *p, int i) {
    int in_half = i % 128;
    int low = bits_at(p + i / 128 * 64 + in_half % 64, in_half / 64 * 4, 4);
    int high = bits_at(p + 128 + i / 128 * 32 + i % 32, in_half / 32 * 2, 2);
    return half(p + 208) * (float)(int8_t)p[192 + i / 16] * (float)(low + 16 * high - 32);
}

static float number_f32(const uint8_t *p, int i) {
    float value;
    (void)i;
    memcpy(&value, p, sizeof value);
    return value;
}

static float number_f16(const uint8_t *p, int i) {
    (void)i;
    return half(p);
}

static float number_bf16(const uint8_t *p, int i) {
    const uint8_t wide[] = {0, 0, p[0], p[1]};
    return number_f32(wide, i);
}

typedef struct type_case {
    int32_t type;
    const char *name;
    int block_numbers;
    int block_bytes;
    int halves[2]; /* where the block's f16 are, -1: none */
    float (*number)(const uint8_t *block, int i);
} type_case;

static const type_case cases[] = {
    {GGUF_F32, "F32", 1, 4, {-1, -1}, number_f32},         {GGUF_F16, "F16", 1, 2, {0, -1}, number_f16},
    {GGUF_BF16, "BF16", 1, 2, {-1, -1}, number_bf16},      {GGUF_Q8_0, "Q8_0", 32, 34, {0, -1}, number_q8_0},
    {GGUF_Q4_0, "Q4_0", 32, 18, {0, -1}, number_q4_0},     {GGUF_Q4_1, "Q4_1", 32, 20, {0, 2}, number_q4_1},
    {GGUF_Q5_0, "Q5_0", 32, 22, {0, -1}, number_q5_0},     {GGUF_Q5_1, "Q5_1", 32, 24, {0, 2}, number_q5_1},
    {GGUF_Q4_K, "Q4_K", 256, 144, {0, 2}, number_q4_k},    {GGUF_Q5_K, "Q5_K", 256, 176, {0, 2}, number_q5_k},
    {GGUF_Q6_K, "Q6_K", 256, 210, {208, -1}, number_q6_k},
};

enum { N_CASES = sizeof cases / sizeof *cases };

/* Random bytes whose f16 are finite: the odd values of those have a test of their own. */
static void fill_block(const type_case *of, uint8_t *block) {
    for (int i = 0; i < of->block_bytes; i++)
        block[i] = (uint8_t)(rand() >> 7);
    for (int i = 0; i < 2; i++)
        if (of->halves[i] >= 0 && (block[of->halves[i] + 1] & 0x7c) == 0x7c)
            block[of->halves[i] + 1] ^= 0x40;
}

static void check_case(const type_case *of) {
    uint8_t data[N_BLOCKS * MAX_BLOCK_BYTES];
    float numbers[N_BLOCKS * 256 + 1];
    int n = N_BLOCKS * of->block_numbers;
    for (int b = 0; b < N_BLOCKS; b++)
        fill_block(of, data + b * of->block_bytes);
    numbers[n] = 42;
    gguf_dequantize(of->type, data, n, numbers);
    assert_true(numbers[n] == 42);
    for (int i = 0; i < n; i++) {
        float expected = of->number(data + i / of->block_numbers * of->block_bytes, i % of->block_numbers);
        if (memcmp(&numbers[i], &expected, sizeof expected) != 0 && !(isnan(numbers[i]) && isnan(expected)))
            fail_msg("%s: number %d is %a, expected %a", of->name, i, (double)numbers[i], (double)expected);
    }
}

static void numbers_are_those_of_the_format(void **state) {
    (void)state;
    srand(1);
    for (int i = 0; i < N_CASES; i++)
        check_case(&cases[i]);
}

static void odd_halves(void **state) {
    static const struct {
        uint8_t bytes[2];
        float value;
    } halves[] = {
        {{0x00, 0x3c}, 1},        {{0x01, 0x00}, 0x1p-24f}, {{0xff, 0x03}, 0x1.ff8p-15f},
        {{0x00, 0x04}, 0x1p-14f}, {{0xff, 0x7b}, 65504},    {{0x00, 0xfc}, -INFINITY},
        {{0x00, 0x7c}, INFINITY}, {{0x00, 0x00}, 0},        {{0x00, 0x80}, -0.0f},
    };
    static const uint8_t not_a_number[] = {1, 0x7e};
    float value;
    (void)state;
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) {
        gguf_dequantize(GGUF_F16, halves[i].bytes, 1, &value);
        assert_memory_equal(&value, &halves[i].value, sizeof value);
    }
    gguf_dequantize(GGUF_F16, not_a_number, 1, &value);
    assert_true(isnan(value));
}

static void row_sizes(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        const type_case *of = &cases[i];
        assert_string_equal(gguf_type_name(of->type), of->name);
        assert_int_equal(gguf_row_bytes(of->type, of->block_numbers), of->block_bytes);
        assert_int_equal(gguf_row_bytes(of->type, 7 * of->block_numbers), 7 * of->block_bytes);
        assert_int_equal(gguf_row_bytes(of->type, 0), 0);
        assert_int_equal(gguf_row_bytes(of->type, -of->block_numbers), 0);
        if (of->block_numbers > 1) {
            assert_int_equal(gguf_row_bytes(of->type, of->block_numbers + 1), 0);
            assert_int_equal(gguf_row_bytes(of->type, of->block_numbers / 2), 0);
        }
    }
    assert_int_equal(gguf_row_bytes(GGUF_F32, INT64_MAX), 0);
    for (int32_t type = -3; type < 100; type++) {
        int is_known = 0;
        for (int i = 0; i < N_CASES; i++)
            is_known |= cases[i].type == type;
        assert_int_equal(gguf_type_name(type) != NULL, is_known);
        assert_int_equal(gguf_row_bytes(type, 256) != 0, is_known);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_those_of_the_format),
        cmocka_unit_test(odd_halves),
        cmocka_unit_test(row_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
