#!/usr/bin/env python3
"""MLA attention of libhisparse_ops against float64 in numpy, from the rows' bytes on, in TAP.

usage: reference_mla.py BUILD_DIR

Every row is read here by the format's definition, with a table of the 256 numbers of e4m3. The bound a result must keep
is worked out beside it. With u = 2^-24, a score of n products is a sum over 16 chains: every product goes through at
most n/16 + 6 roundings (its own, those of its chain, four to add the chains, the scale), so the score is off by at most
e = (n/16 + 6) u scale sum|q k|. A weight is off by the relative error e^(2e) - 1 at most, its own score's and the
maximum's, and by 4 u of the exponential; weighted values and weights are then summed over 64 rows and over tiles, and
divided, n_tiles + 70 roundings in all. out is a mean of values under such weights: off by at most
2 (e^(2e) - 1 + (n_tiles + 80) u) max|v|, and the logarithm by half of that without the values, and its own rounding.
Roundings fall either way, so that much is never seen. What is asked for is a hundredth of it, and of a logarithm, which
shows the error of a single score where one row outweighs the rest, a tenth. Both are a few times what comes out, and
rows rounded to bf16 on the way do not pass.
"""
import ctypes
import os
import sys

try:
    import numpy as np
except ImportError:
    print("1..1\nok 1 - MLA against numpy # SKIP numpy is missing")
    sys.exit(0)

BF16, FP8, V4 = 0, 1, 2
NAMES = ("bf16", "fp8", "v4")
U = 2.0**-24
SHARE, SHARE_LSE = 0.01, 0.1


class Shape(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("n_heads", ctypes.c_int32), ("latent_dim", ctypes.c_int32),
                ("rope_dim", ctypes.c_int32), ("format", ctypes.c_int32), ("scale", ctypes.c_float),
                ("reserved", ctypes.c_int32)]


class Plane(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("row_bytes", ctypes.c_size_t), ("row_stride", ctypes.c_size_t),
                ("block_stride", ctypes.c_size_t), ("rows_per_block", ctypes.c_int32), ("reserved", ctypes.c_int32)]


def e4m3_table():
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, (codes & 7) / 8.0
    numbers = np.where(exponent == 0, mantissa * 2.0**-6, (1 + mantissa) * 2.0**(exponent - 7.0))
    numbers[(codes & 127) == 127] = np.nan
    return np.where(codes & 128, -numbers, numbers)


def bf16(raw):
    wide = np.ascontiguousarray(raw).view("<u2").astype(np.uint32) << 16
    return wide.view(np.float32).astype(np.float64)


def random_cache(rng, form, n_blocks):
    """A cache of blocks of 64 rows with random bytes, its planes, and its rows in float64."""
    e4m3, size = e4m3_table(), (1152, 656, 576)[form]
    block = 64 * size if form != V4 else (64 * 584 + 575) // 576 * 576
    memory = np.zeros((n_blocks, block), np.uint8)
    rows = memory[:, :64 * size].reshape(n_blocks, 64, size)
    rope = (rng.standard_normal((n_blocks, 64, 64)).astype(np.float32).view(np.uint32) >> 16).astype("<u2")
    rows[..., -128:] = rope.view(np.uint8).reshape(n_blocks, 64, 128)
    planes = (Plane * 2)(Plane(memory.ctypes.data, size, size, block, 64, 0),
                         Plane(memory.ctypes.data + 64 * size, 8, 8, block, 64, 0))
    if form == BF16:
        latent = (rng.standard_normal((n_blocks, 64, 512)).astype(np.float32).view(np.uint32) >> 16).astype("<u2")
        rows[..., :1024] = latent.view(np.uint8).reshape(n_blocks, 64, 1024)
        return memory, planes, bf16(rows).reshape(-1, 576)
    n, group = (512, 128) if form == FP8 else (448, 64)
    codes = rng.integers(0, 256, (n_blocks, 64, n), np.uint8)
    codes[(codes & 127) == 127] = 0
    rows[..., :n] = codes
    if form == FP8:  # any number, not only powers of two
        scales = rng.uniform(1e-3, 1e-2, (n_blocks, 64, 4)).astype("<f4")
        rows[..., 512:528] = scales.view(np.uint8).reshape(n_blocks, 64, 16)
        # a product with such a scale is rounded once, to float32
        latent = (e4m3[codes] * np.repeat(scales.astype(np.float64), group, axis=2)).astype(np.float32)
    else:
        exponents = rng.integers(115, 121, (n_blocks, 64, 8), np.uint8)
        memory[:, 64 * 576:64 * 584] = exponents.reshape(n_blocks, -1)
        latent = e4m3[codes] * np.repeat(2.0**(exponents[..., :7].astype(np.float64) - 127), group, axis=2)
    keys = np.concatenate([latent.astype(np.float64), bf16(np.ascontiguousarray(rows[..., -128:]))], axis=2)
    return memory, planes, keys.reshape(-1, n + 64)


def reference(keys, value_dim, query, ids, scale, sink):
    """out, lse and a bound of the error of each, for one query [n_heads][key_dim]."""
    chosen = keys[ids[ids >= 0]]
    heads, u_tiles = len(query), (len(ids) + 63) // 64 + 80
    if len(chosen) == 0:
        return np.zeros((heads, value_dim)), np.full(heads, -np.inf), 0.0, 0.0
    scores = query.astype(np.float64) @ chosen.T * scale
    top = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - top)
    lse = top[:, 0] + np.log(weights.sum(axis=1))
    out = weights @ chosen[:, :value_dim] / weights.sum(axis=1, keepdims=True)
    if sink is not None:
        out /= 1.0 + np.exp(sink.astype(np.float64) - lse)[:, None]
    off = (keys.shape[1] / 16 + 6) * U * scale * (np.abs(query.astype(np.float64)) @ np.abs(chosen).T).max()
    spread = np.expm1(2 * off) + u_tiles * U
    return out, lse, 2 * spread * np.abs(chosen).max(), spread + 2 * U * np.abs(lse).max()


def run(lib, rng, form, heads, n_queries, n_rows, with_sink):
    memory, planes, keys = random_cache(rng, form, 40)
    dim = keys.shape[1]
    value_dim = 512
    shape = Shape(ctypes.sizeof(Shape), heads, dim - 64, 64, form, np.float32(dim**-0.5), 0)
    query = rng.standard_normal((n_queries, heads, dim)).astype(np.float32)
    ids = rng.integers(-1, len(keys), (n_queries, n_rows)).astype(np.int32)
    ids[rng.random(ids.shape) < 0.1] = -1
    sink = rng.standard_normal(heads).astype(np.float32) * 3 if with_sink else None
    out = np.full((n_queries, heads, value_dim), np.nan, np.float32)
    lse = np.full((n_queries, heads), np.nan, np.float32)
    size = ctypes.c_size_t()
    assert lib.hsp_mla_scratch(ctypes.byref(shape), n_rows, ctypes.byref(size)) == 0
    scratch = ctypes.create_string_buffer(size.value + 1)
    at = lambda a: None if a is None else ctypes.c_void_p(a.ctypes.data)
    status = lib.hsp_mla_attend(ctypes.byref(shape), planes, at(query), at(ids), n_queries, n_rows, at(sink), at(out),
                                at(lse), scratch)
    assert status == 0, status
    worst = worst_lse = 0.0
    for q in range(n_queries):
        want, want_lse, bound, lse_bound = reference(keys, value_dim, query[q], ids[q], float(shape.scale), sink)
        error = np.abs(out[q] - want).max()
        if np.isfinite(want_lse).all():
            lse_share = np.abs(lse[q] - want_lse).max() / lse_bound
        else:  # every row of the query is masked
            lse_share = 0.0 if np.array_equal(lse[q], want_lse) else 1.0
        share = error / bound if bound else error
        worst, worst_lse = max(worst, share), max(worst_lse, lse_share)
    return worst, worst_lse


def main():
    lib = ctypes.CDLL(os.path.join(sys.argv[1], "lib", "libhisparse_ops.so"))
    rng, number, bad = np.random.default_rng(20240917), 0, 0
    for form in (BF16, FP8, V4):
        for heads, n_queries, n_rows in ((128, 1, 2048), (16, 4, 65), (5, 2, 64), (3, 2, 63), (7, 1, 1), (2, 3, 0)):
            for with_sink in (False, True):
                worst, worst_lse = run(lib, rng, form, heads, n_queries, n_rows, with_sink)
                good = worst <= SHARE and worst_lse <= SHARE_LSE
                number += 1
                bad += not good
                print("%s %d - %s %d heads %d queries %d rows%s" % ("ok" if good else "not ok", number, NAMES[form],
                      heads, n_queries, n_rows, " sink" if with_sink else ""))
                print("# the greatest error is %.1e of its bound, of a logarithm %.1e" % (worst, worst_lse))
    print("1..%d" % number)
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
