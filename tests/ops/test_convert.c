/* SPDX-License-Identifier: Apache-2.0
 *
 * hsp_pack and hsp_unpack against the definition of the formats: every 16-bit pattern one way, and the other way the
 * nearest of its two neighbours, found by comparing distances in double.
 */
#include "ops_common.h"

#include <math.h>

/* The value of a 16-bit pattern by its definition: sign, exponent of `e` bits, mantissa of `m` bits. */
static double value_of(uint16_t bits, int e, int m) {
    int exponent = bits >> m & ((1 << e) - 1), bias = (1 << (e - 1)) - 1;
    double mantissa = bits & ((1 << m) - 1), sign = bits & 0x8000 ? -1.0 : 1.0;
    if (exponent == (1 << e) - 1)
        return mantissa != 0.0 ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - m);
    return sign * ldexp(mantissa + (1 << m), exponent - bias - m);
}

static int exponent_bits(int32_t dtype) {
    return dtype == HSP_F16 ? 5 : 8;
}

static int mantissa_bits(int32_t dtype) {
    return dtype == HSP_F16 ? 10 : 7;
}

static double value_as(int32_t dtype, uint16_t bits) {
    return value_of(bits, exponent_bits(dtype), mantissa_bits(dtype));
}

/* To the nearest, ties to the even pattern, by search over the magnitudes. Infinity takes part as the power of two that
 * would follow the greatest number. */
static uint16_t nearest_bits(int32_t dtype, float x) {
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    uint16_t infinite = (uint16_t)(((1 << exponent_bits(dtype)) - 1) << mantissa_bits(dtype)), low = 0;
    double magnitude = fabs((double)x), beyond = ldexp(1.0, 1 << (exponent_bits(dtype) - 1));
    for (uint16_t step = 0x4000; step; step /= 2)
        if (low + step < infinite && value_as(dtype, (uint16_t)(low + step)) <= magnitude)
            low = (uint16_t)(low + step);
    if (isinf(x))
        return sign | infinite;
    double above = low + 1 == infinite ? beyond : value_as(dtype, (uint16_t)(low + 1));
    double down = magnitude - value_as(dtype, low), up = above - magnitude;
    uint16_t chosen = down < up || (down == up && low % 2 == 0) ? low : (uint16_t)(low + 1);
    return sign | chosen;
}

static void unpacks_every_pattern(void **state) {
    (void)state;
    uint16_t *packed = allocate(65536 * sizeof *packed);
    float *values = allocate(65536 * sizeof *values);
    for (int i = 0; i < 65536; i++)
        packed[i] = (uint16_t)i;
    FOR_EACH_TARGET(target)
    for (int32_t dtype = HSP_F16; dtype <= HSP_BF16; dtype++) {
        assert_int_equal(hsp_unpack(dtype, packed, 65536, values), HSP_OK);
        for (int i = 0; i < 65536; i++) {
            double expected = value_as(dtype, (uint16_t)i);
            assert_int_equal(isnan(values[i]) != 0, isnan(expected) != 0);
            assert_true(isnan(expected) ||
                        ((double)values[i] == expected && !signbit(values[i]) == !signbit(expected)));
        }
    }
    free(packed);
    free(values);
}

static void packs_what_it_unpacked(void **state) {
    (void)state;
    uint16_t *packed = allocate(65536 * sizeof *packed), *again = allocate(65536 * sizeof *again);
    float *values = allocate(65536 * sizeof *values);
    for (int i = 0; i < 65536; i++)
        packed[i] = (uint16_t)i;
    FOR_EACH_TARGET(target)
    for (int32_t dtype = HSP_F16; dtype <= HSP_BF16; dtype++) {
        uint16_t quiet = (uint16_t)(1 << (mantissa_bits(dtype) - 1));
        assert_int_equal(hsp_unpack(dtype, packed, 65536, values), HSP_OK);
        assert_int_equal(hsp_pack(dtype, values, 65536, again), HSP_OK);
        for (int i = 0; i < 65536; i++)
            assert_int_equal(again[i], isnan(values[i]) ? packed[i] | quiet : packed[i]);
    }
    free(packed);
    free(again);
    free(values);
}

/* Every finite pattern, the midpoint to the next, and the floats beside both; then random bits. */
static size_t hard_values(int32_t dtype, float *values_out) {
    uint64_t seed = 7;
    size_t n = 0;
    for (int i = 0; i < 65536; i++) {
        double low = value_as(dtype, (uint16_t)i), high = value_as(dtype, (uint16_t)(i + 1));
        if (isnan(low) || isinf(low))
            continue;
        if (isinf(high) || isnan(high))
            high = copysign(ldexp(1.0, 1 << (exponent_bits(dtype) - 1)), low);
        float middle = (float)(low + (high - low) / 2);
        values_out[n++] = (float)low;
        values_out[n++] = middle;
        values_out[n++] = nextafterf(middle, -INFINITY);
        values_out[n++] = nextafterf(middle, INFINITY);
    }
    for (int i = 0; i < 20000; i++) {
        uint32_t bits = next_random(&seed);
        float x;
        memcpy(&x, &bits, sizeof x);
        values_out[n++] = isnan(x) ? INFINITY : x;
    }
    values_out[n++] = -INFINITY;
    return n;
}

static void packs_to_the_nearest(void **state) {
    (void)state;
    float *values = allocate(300000 * sizeof *values);
    uint16_t *packed = allocate(300000 * sizeof *packed);
    FOR_EACH_TARGET(target)
    for (int32_t dtype = HSP_F16; dtype <= HSP_BF16; dtype++) {
        size_t n = hard_values(dtype, values);
        assert_int_equal(hsp_pack(dtype, values, n, packed), HSP_OK);
        for (size_t i = 0; i < n; i++)
            if (packed[i] != nearest_bits(dtype, values[i]))
                fail_msg("%s, dtype %d: %a became %04x, not %04x", hsp_ops_target(), dtype, (double)values[i],
                         packed[i], nearest_bits(dtype, values[i]));
    }
    free(values);
    free(packed);
}

/* A NaN whose payload lies wholly in the bits that are cut off must not become infinity. */
static void keeps_nan(void **state) {
    (void)state;
    const uint32_t bits[4] = {0x7f800001, 0xff800001, 0x7fffffff, 0xffc00000};
    float values[4];
    uint16_t packed[4];
    memcpy(values, bits, sizeof values);
    FOR_EACH_TARGET(target)
    for (int32_t dtype = HSP_F16; dtype <= HSP_BF16; dtype++) {
        assert_int_equal(hsp_pack(dtype, values, 4, packed), HSP_OK);
        for (int i = 0; i < 4; i++) {
            assert_true(isnan(value_as(dtype, packed[i])));
            assert_int_equal(packed[i] >> 15, bits[i] >> 31);
        }
    }
}

/* Every length up to a few vectors, at odd places, and nothing touched before or after. */
static void touches_only_its_numbers(void **state) {
    (void)state;
    float values[52], back[52];
    char packed[52 * 4 + 8];
    for (int i = 0; i < 52; i++)
        values[i] = (float)(i - 20);
    FOR_EACH_TARGET(target)
    for (int32_t dtype = HSP_F32; dtype <= HSP_BF16; dtype++)
        for (size_t n = 0; n <= 50; n++) {
            size_t bytes = n * bytes_of(dtype);
            memset(packed, 0x5a, sizeof packed);
            for (int i = 0; i < 52; i++)
                back[i] = -99.0f;
            assert_int_equal(hsp_pack(dtype, values, n, packed + 2), HSP_OK);
            assert_true(packed[0] == 0x5a && packed[1] == 0x5a);
            for (size_t i = bytes + 2; i < sizeof packed; i++)
                assert_int_equal(packed[i], 0x5a);
            assert_int_equal(hsp_unpack(dtype, packed + 2, n, back + 1), HSP_OK);
            assert_memory_equal(values, back + 1, n * sizeof *values);
            assert_true(back[0] == -99.0f && back[n + 1] == -99.0f);
        }
}

static void refuses_what_it_cannot(void **state) {
    (void)state;
    float value = 1.0f, back = -1.0f;
    uint16_t packed = 0x1234;
    assert_int_equal(hsp_pack(4, &value, 1, &packed), HSP_EINVAL);
    assert_int_equal(hsp_pack(-1, &value, 1, &packed), HSP_EINVAL);
    assert_int_equal(hsp_pack(HSP_F16, NULL, 1, &packed), HSP_EINVAL);
    assert_int_equal(hsp_pack(HSP_F16, &value, 1, NULL), HSP_EINVAL);
    assert_int_equal(hsp_unpack(4, &packed, 1, &back), HSP_EINVAL);
    assert_int_equal(hsp_unpack(HSP_F16, NULL, 1, &back), HSP_EINVAL);
    assert_int_equal(hsp_unpack(HSP_F16, &packed, 1, NULL), HSP_EINVAL);
    assert_int_equal(hsp_pack(HSP_BF16, NULL, 0, NULL), HSP_OK);
    assert_int_equal(packed, 0x1234);
    assert_true(back == -1.0f);
}

/* The value of an e4m3 pattern by its definition: 4 bits of exponent with bias 7, all ones but for NaN is a number. */
static double e4m3_value(uint8_t bits) {
    int exponent = bits >> 3 & 15, mantissa = bits & 7;
    double sign = bits & 0x80 ? -1.0 : 1.0;
    if ((bits & 0x7f) == 0x7f)
        return NAN;
    return exponent == 0 ? sign * ldexp(mantissa, -9) : sign * ldexp(mantissa + 8, exponent - 10);
}

/* The nearest of the 126 positive numbers, ties to the even pattern; more than 464 would go to 480, which is NaN. */
static uint8_t e4m3_nearest(float x) {
    uint8_t sign = signbit(x) ? 0x80 : 0, best = 0;
    double magnitude = fabs((double)x);
    if (!(magnitude <= 464.0))
        return sign | 0x7f;
    for (uint8_t code = 1; code < 0x7f; code++) {
        double now = fabs(e4m3_value(code) - magnitude), least = fabs(e4m3_value(best) - magnitude);
        if (now < least || (now == least && code % 2 == 0))
            best = code;
    }
    return sign | best;
}

static void e4m3_both_ways(void **state) {
    (void)state;
    uint8_t packed[256], again[256];
    float values[256], hard[3 * 127 + 200];
    uint64_t seed = 11;
    size_t n = 0;
    for (int i = 0; i < 256; i++)
        packed[i] = (uint8_t)i;
    for (uint8_t code = 0; code < 0x7f; code++) {
        double next = code == 0x7e ? 480.0 : e4m3_value((uint8_t)(code + 1));
        float middle = (float)((e4m3_value(code) + next) / 2);
        hard[n++] = middle;
        hard[n++] = nextafterf(middle, INFINITY);
        hard[n++] = -nextafterf(middle, -INFINITY);
    }
    for (int i = 0; i < 200; i++)
        hard[n++] = ldexpf((float)(int32_t)next_random(&seed), (int)(next_random(&seed) % 24) - 40);
    FOR_EACH_TARGET(target) {
        assert_int_equal(hsp_unpack(HSP_E4M3, packed, 256, values), HSP_OK);
        assert_int_equal(hsp_pack(HSP_E4M3, values, 256, again), HSP_OK);
        for (int i = 0; i < 256; i++) {
            double expected = e4m3_value((uint8_t)i);
            assert_int_equal(isnan(values[i]) != 0, isnan(expected) != 0);
            assert_true(isnan(expected) ||
                        ((double)values[i] == expected && !signbit(values[i]) == !signbit(expected)));
            assert_int_equal(again[i], i);
        }
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(hsp_pack(HSP_E4M3, &hard[i], 1, again), HSP_OK);
            assert_int_equal(again[0], e4m3_nearest(hard[i]));
        }
    }
}

static void names_its_target(void **state) {
    (void)state;
    FOR_EACH_TARGET(target)
    assert_string_equal(hsp_ops_target(), target_names[target]);
    const char *last = hsp_ops_target();
    assert_int_equal(hsp__ops_force_target("mmx"), -1);
    assert_string_equal(hsp_ops_target(), last);
    assert_int_equal(hsp__ops_force_target(NULL), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unpacks_every_pattern),    cmocka_unit_test(packs_what_it_unpacked),
        cmocka_unit_test(packs_to_the_nearest),     cmocka_unit_test(keeps_nan),
        cmocka_unit_test(touches_only_its_numbers), cmocka_unit_test(refuses_what_it_cannot),
        cmocka_unit_test(e4m3_both_ways),           cmocka_unit_test(names_its_target),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
