#!/usr/bin/env python3
"""The lightning indexer (DSA) of libhisparse_ops against float64 in numpy, from its definition, in TAP.

usage: reference_dsa.py BUILD_DIR

Packing is checked twice. Of keys in small whole numbers the transform adds up exactly in float32 and only the factor
d^-0.5 rounds, so every byte must be the one worked out here. Of any keys, a packed number must be within half a step of
e4m3 or bf16 of the float64 transform, and the float error of that: with u = 2^-24, 16 sums and one for each doubling
beyond, the factor and its own rounding, log2(d) + 14 roundings of sum|x| d^-0.5.

Scores are then worked out in float64 from the bytes of the keys. The query is in small whole numbers and packed here,
exactly. Every product of a score is exact and goes through at most d - 1 sums in its dot product, H/16 + 4 sums over
heads, and 7 roundings of factors, so the score is off by at most (d + H/16 + 12) u s_k sum_j |w_j| sum_c |q_c k_c|.
Roundings fall either way and what is asked for is a tenth of that, which is twice what comes out at d = 16 and thirty
times at 128; dot products rounded to bf16 do not pass.

A selection must be that of a full sort of the library's own scores, lower token first where they are equal, and no token
left out may have a float64 score above that of one chosen by more than both bounds.
"""
import ctypes
import os
import sys

try:
    import numpy as np
except ImportError:
    print("1..1\nok 1 - DSA against numpy # SKIP numpy is missing")
    sys.exit(0)

BF16, E4M3 = 2, 3
NAMES = {BF16: "bf16", E4M3: "e4m3"}
U = 2.0**-24
SHARE = 0.1


class Shape(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("n_heads", ctypes.c_int32), ("head_dim", ctypes.c_int32),
                ("dtype", ctypes.c_int32), ("reserved", ctypes.c_int32)]


def hadamard(dim):
    matrix = np.ones((1, 1))
    while len(matrix) < dim:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def e4m3_table():
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, (codes & 7) / 8.0
    numbers = np.where(exponent == 0, mantissa * 2.0**-6, (1 + mantissa) * 2.0**(exponent - 7.0))
    numbers[(codes & 127) == 127] = np.nan
    return np.where(codes & 128, -numbers, numbers)


def scales_of(rows):
    """Per row the least power of two with max(amax, 1e-4) / scale <= 448."""
    amax = np.maximum(np.abs(rows).max(-1), 1e-4)
    scale = 2.0**np.ceil(np.log2(amax / 448.0))
    scale = np.where(amax > 448.0 * scale, scale * 2, scale)  # a logarithm may be off by its last place
    return np.where(amax <= 224.0 * scale, scale / 2, scale)


def step_of(dtype, x):
    """Distance of neighbours in the format, at x (in units of the scale)."""
    bits, least = (7, -133) if dtype == BF16 else (3, -9)
    _, exponent = np.frexp(x)  # 0.5 <= fraction < 1
    return 2.0**np.maximum(exponent - 1.0 - bits, least)


def pack_exactly(dtype, rows):
    """The packed numbers in float64, to nearest even, and the scales."""
    scale = scales_of(rows) if dtype == E4M3 else np.ones(rows.shape[:-1])
    x = rows / scale[..., None]
    step = step_of(dtype, x)
    return np.round(x / step) * step, scale


class Library:
    def __init__(self, build, heads, dim, dtype):
        self.c = ctypes.CDLL(os.path.join(build, "lib", "libhisparse_ops.so"))
        self.shape = Shape(ctypes.sizeof(Shape), heads, dim, dtype, 0)
        self.key_bytes, self.query_bytes = self.size("hsp_dsa_key_bytes"), self.size("hsp_dsa_query_bytes")

    def call(self, name, *arguments):
        converted = [a.ctypes.data_as(ctypes.c_void_p) if isinstance(a, np.ndarray) else a for a in arguments]
        status = getattr(self.c, name)(ctypes.byref(self.shape), *converted)
        if status:
            raise AssertionError("%s: %d" % (name, status))

    def size(self, name, *arguments):
        out = ctypes.c_size_t()
        self.call(name, *arguments, ctypes.byref(out))
        return out.value

    def pack_keys(self, keys, pad):
        n, stride = len(keys), self.key_bytes + pad
        rows = np.full((n, stride), 0x5a, np.uint8)
        self.call("hsp_dsa_pack_keys", keys, ctypes.c_size_t(keys.strides[0]), n, rows, ctypes.c_size_t(stride))
        assert (rows[:, self.key_bytes:] == 0x5a).all()
        return rows

    def pack_query(self, query, weights):
        packed = np.empty(self.query_bytes, np.uint8)
        self.call("hsp_dsa_pack_query", query, weights, packed)
        return packed

    def scores(self, rows, packed):
        out = np.empty(len(rows), np.float32)
        self.call("hsp_dsa_scores", rows, ctypes.c_size_t(rows.strides[0]), 0, len(rows), packed, out)
        return out

    def select(self, rows, packed, k):
        out = np.full(k, 77, np.int32)
        scratch = np.empty(max(1, self.size("hsp_dsa_scratch", len(rows))), np.uint8)
        self.call("hsp_dsa_select", rows, ctypes.c_size_t(rows.strides[0]), len(rows), packed, k, out, scratch)
        return out


def unpack_rows(dtype, dim, rows):
    """Numbers and scales of packed rows, from their bytes."""
    if dtype == E4M3:
        scale = np.ascontiguousarray(rows[:, dim:dim + 4]).view("<f4")[:, 0]
        return e4m3_table()[rows[:, :dim]], scale.astype(np.float64)
    wide = np.ascontiguousarray(rows[:, :2 * dim]).view("<u2").astype(np.uint32) << 16
    return wide.view(np.float32).astype(np.float64), np.ones(len(rows))


def random_rows(rng, shape):
    """Numbers of several sizes, with the outliers that the transform is there for."""
    rows = rng.standard_normal(shape) * np.exp(rng.uniform(-6, 4, shape[:-1] + (1,)))
    return np.where(rng.random(shape) < 0.02, 30 * rows, rows).astype(np.float32)


def whole_rows(rng, shape):
    rows = rng.integers(-99, 100, shape) * 2.0**rng.integers(-20, 20, shape[:-1] + (1,))
    return rows.astype(np.float32)


def transform_exactly(rows):
    """As float32 has it to the last bit, of whole_rows."""
    dim = rows.shape[-1]
    sums = (rows.astype(np.float64) @ hadamard(dim)).astype(np.float32)
    return (sums * np.float32(dim**-0.5)).astype(np.float64)


def transform(rows):
    """In float64, and how far float32 may be from it."""
    dim = rows.shape[-1]
    wide = rows.astype(np.float64)
    error = (np.log2(dim) + 14) * U * np.abs(wide).sum(-1, keepdims=True) / np.sqrt(dim)
    return wide @ hadamard(dim) / np.sqrt(dim), error


def check_whole_numbers(rng, build, heads, dim, dtype):
    library = Library(build, heads, dim, dtype)
    keys = whole_rows(rng, (300, dim))
    values, scale = pack_exactly(dtype, transform_exactly(keys))
    got, got_scale = unpack_rows(dtype, dim, library.pack_keys(keys, 5))
    return (got == values).all() and (got_scale == scale).all(), ""


def check_any_numbers(rng, build, heads, dim, dtype):
    library = Library(build, heads, dim, dtype)
    keys = random_rows(rng, (500, dim))
    exact, error = transform(keys)
    got, scale = unpack_rows(dtype, dim, library.pack_keys(keys, 0))
    off = np.abs(got * scale[:, None] - exact) - error
    half = np.maximum(step_of(dtype, got), step_of(dtype, exact / scale[:, None])) / 2 * scale[:, None]
    expected = scales_of(exact) if dtype == E4M3 else np.ones(len(keys))
    near = np.abs(exact).max(-1) / 448 / expected  # an amax at a scale's bound may fall to either side
    same = (scale == expected) | (np.abs(np.log2(near) - np.round(np.log2(near))) < 1e-4)
    return (off <= half).all() and same.all(), ""


def reference_scores(dtype, query, weights, values, scale):
    """Scores in float64, and the bounds of float32."""
    heads, dim = query.shape
    packed, query_scale = pack_exactly(dtype, transform_exactly(query))
    factor = weights.astype(np.float64) * query_scale * (heads * dim)**-0.5
    score = np.maximum(values @ packed.T, 0.0) @ factor * scale
    magnitude = np.abs(values) @ np.abs(packed).T @ np.abs(factor) * scale
    return score, (dim + heads / 16 + 12) * U * magnitude


def check_selection(library, rows, packed, k, score, bound):
    got_scores, got = library.scores(rows, packed), library.select(rows, packed, k)
    n = min(k, len(rows))
    order = np.lexsort((np.arange(len(rows)), -got_scores.astype(np.float64)))
    good = (got[:n] == np.sort(order[:n])).all() and (got[n:] == -1).all()
    out = np.setdiff1d(np.arange(len(rows)), got[:n])
    if len(out):
        good = good and (score[out] - bound[out]).max() <= (score[got[:n]] + bound[got[:n]]).min()
    return good


def check_scores(rng, build, heads, dim, dtype):
    library, n = Library(build, heads, dim, dtype), int(rng.integers(1, 3000))
    keys, query = random_rows(rng, (n, dim)), whole_rows(rng, (heads, dim))
    weights = rng.standard_normal(heads).astype(np.float32)
    keys[rng.integers(0, n, n // 4)] = keys[0]  # ties
    rows, packed = library.pack_keys(keys, int(rng.integers(0, 9))), library.pack_query(query, weights)
    score, bound = reference_scores(dtype, query, weights, *unpack_rows(dtype, dim, rows))
    share = (np.abs(library.scores(rows, packed) - score) / np.maximum(bound, 1e-300)).max()
    good = share <= SHARE
    for k in (1, n // 3 + 1, n, 2048):
        good = good and check_selection(library, rows, packed, k, score, SHARE * bound)
    return good, "%d tokens, %.4f of the bound" % (n, share)


def main():
    build, rng, number, bad = sys.argv[1], np.random.default_rng(20251201), 0, 0
    shapes = ((64, 128), (32, 128), (16, 16), (1, 64), (7, 32), (40, 256), (64, 1024))
    for check, times in ((check_whole_numbers, 1), (check_any_numbers, 1), (check_scores, 3)):
        for heads, dim in shapes:
            for dtype in (BF16, E4M3):
                for _ in range(times):
                    number += 1
                    good, note = check(rng, build, heads, dim, dtype)
                    bad += not good
                    print("%s %d - dsa %s, %d heads of %d, %s%s" % ("ok" if good else "not ok", number,
                          check.__name__[6:], heads, dim, NAMES[dtype], note and ": " + note))
    print("1..%d" % number)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
