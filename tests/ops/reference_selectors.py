#!/usr/bin/env python3
"""NSA, block-sparse, exact and Quest selections of libhisparse_ops against float64 in numpy, in TAP.

usage: reference_selectors.py BUILD_DIR

Selections must be the same but where two scores are closer than the float error, which is worked out beside them. With
u = 2^-24, a score of n products is off by at most e = (n / 16 + 6) u scale sum|q k| (sums go over 16 chains), so a
probability is off by the relative error expm1(2 e) and some roundings of its own. A report line says how many
selections differed for such a tie.
"""
import ctypes
import os
import sys

try:
    import numpy as np
except ImportError:
    print("1..1\nok 1 - selectors against numpy # SKIP numpy is missing")
    sys.exit(0)

U = 2.0**-24
DTYPES = ("f32", "f16", "bf16")


def shape_class(*names):
    fields = [("struct_size", ctypes.c_size_t)] + [(n, ctypes.c_int32) for n in names] + [("scale", ctypes.c_float)]
    return type("Shape", (ctypes.Structure,), {"_fields_": fields})


NsaShape = shape_class("n_heads", "n_kv_heads", "key_dim", "dtype", "compress_tokens", "compress_stride",
                       "block_tokens", "n_blocks", "n_first", "n_local")
BlockShape = shape_class("n_heads", "n_groups", "n_key_heads", "key_dim", "dtype", "block_tokens", "n_blocks",
                         "n_first", "n_local")
ExactShape = shape_class("n_heads", "n_kv_heads", "key_dim", "dtype", "n_selections")


class QuestShape(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("n_heads", ctypes.c_int32), ("n_kv_heads", ctypes.c_int32),
                ("head_dim", ctypes.c_int32), ("page_tokens", ctypes.c_int32), ("dtype", ctypes.c_int32)]


def random_keys(rng, dtype, shape):
    """Packed keys and the same numbers in float64."""
    values = (rng.standard_normal(shape) * rng.choice([0.3, 1.0, 3.0])).astype(np.float32)
    if dtype == 0:
        return values, values.astype(np.float64)
    if dtype == 1:
        packed = values.astype(np.float16)
        return packed, packed.astype(np.float64)
    packed = (values.view(np.uint32) >> 16).astype(np.uint16)
    return packed, (packed.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def address(array):
    return array.ctypes.data_as(ctypes.c_void_p)


class Library:
    def __init__(self, build):
        self.c = ctypes.CDLL(os.path.join(build, "lib", "libhisparse_ops.so"))

    def scratch(self, name, shape, n_tokens):
        n_bytes = ctypes.c_size_t()
        assert getattr(self.c, name)(ctypes.byref(shape), n_tokens, ctypes.byref(n_bytes)) == 0
        return np.empty(n_bytes.value + 4, np.uint8)

    def select(self, name, shape, keys, n_tokens, query, out, *k):
        """Calls hsp_<name>_select; keys: [n][heads][dim]."""
        scratch = self.scratch("hsp_%s_scratch" % name, shape, n_tokens)
        stride = ctypes.c_size_t(int(np.prod(keys.shape[1:])) * keys.itemsize)
        function = getattr(self.c, "hsp_%s_select" % name)
        assert function(ctypes.byref(shape), address(keys), stride, n_tokens, address(query), *k, address(out),
                        address(scratch)) == 0
        return out


def dots(keys, query, scale):
    """Scores [heads][n] of query [heads][dim] against keys [n][key heads][dim], and how far a float may be off."""
    keys = np.repeat(keys, query.shape[0] // keys.shape[1], axis=1).transpose(1, 2, 0)
    error = (query.shape[1] / 16 + 6) * U * abs(scale)
    return scale * (query[:, None] @ keys)[:, 0], error * (np.abs(query)[:, None] @ np.abs(keys))[:, 0]


def probabilities(keys, query, scale):
    """[heads][n], and the relative error of a float."""
    scores, error = dots(keys, query, scale)
    if scores.shape[1] == 0:
        return scores, 0.0
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True), np.expm1(2 * error.max()) + 400 * U


class Tally:
    def __init__(self):
        self.selections = self.ties = self.wrong = 0

    def compare(self, got, score, error, forced, block_tokens, n_tokens, n_chosen):
        """got: one selection; score, error: per block; forced: which blocks are always in."""
        self.selections += 1
        n_blocks = -(-n_tokens // block_tokens)
        rank = np.where(forced, np.inf, score)
        chosen = np.sort(np.argsort(-rank, kind="stable")[:n_chosen])
        tokens = [t for b in chosen for t in range(b * block_tokens, min((b + 1) * block_tokens, n_tokens))]
        expected = np.full(n_chosen * block_tokens, -1)
        expected[:len(tokens)] = tokens
        if np.array_equal(got, expected):
            return
        taken = np.unique(got[got >= 0] // block_tokens)
        whole = [t for b in taken for t in range(b * block_tokens, min((b + 1) * block_tokens, n_tokens))]
        good = len(taken) == min(n_chosen, n_blocks) and list(got[got >= 0]) == whole and (got[len(whole):] == -1).all()
        out, instead = np.setdiff1d(chosen, taken), np.setdiff1d(taken, chosen)
        if good and not forced[out].any():
            good = all(score[a] - score[b] <= error[a] + error[b] for a in out for b in instead)
        self.ties += good
        self.wrong += not good


def forced_blocks(n_blocks, n_first, n_local):
    at = np.arange(n_blocks)
    return (at < n_first) | (at >= n_blocks - n_local)


def check_nsa(lib, rng, tally):
    group, kv, dim = rng.choice([1, 4, 16]), rng.choice([1, 4]), rng.choice([16, 50, 192])
    stride = rng.choice([4, 16])
    per_key, per_block = rng.choice([1, 2, 3]), rng.choice([1, 4])
    dtype, n_tokens = int(rng.integers(3)), int(rng.integers(1, 9000))
    n_first, n_local = int(rng.integers(2)), int(rng.integers(3))
    shape = NsaShape(ctypes.sizeof(NsaShape), group * kv, kv, dim, dtype, stride * per_key, stride, stride * per_block,
                     16, n_first, n_local, dim**-0.5)
    count = ctypes.c_int32()
    assert lib.c.hsp_nsa_compressed(ctypes.byref(shape), n_tokens, ctypes.byref(count)) == 0
    starts = np.arange(0, n_tokens, stride)
    starts = starts[starts + stride * per_key <= n_tokens]
    if count.value != len(starts):
        tally.wrong += 1
        return
    packed, keys = random_keys(rng, dtype, (len(starts), kv, dim))
    query = rng.standard_normal((group * kv, dim)).astype(np.float32)
    n_blocks = -(-n_tokens // (stride * per_block))
    out = lib.select("nsa", shape, packed, n_tokens, query, np.empty((kv, 16 * stride * per_block), np.int32))
    p, error = probabilities(keys, query.astype(np.float64), shape.scale)
    # tokens that row i and block j share, in strides
    first = np.maximum(starts[:, None], np.arange(n_blocks) * stride * per_block)
    last = np.minimum(starts[:, None] + stride * per_key, (np.arange(n_blocks) + 1) * stride * per_block)
    importance = p @ (np.maximum(last - first, 0) / stride)
    for g in range(kv):
        score = importance[g * group:(g + 1) * group].sum(0)
        tally.compare(out[g], score, score * error, forced_blocks(n_blocks, n_first, n_local), stride * per_block,
                      n_tokens, 16)


def check_block(lib, rng, tally):
    groups, per_group, dim = rng.choice([1, 4]), rng.choice([1, 2]), rng.choice([16, 50, 128])
    key_heads, block = rng.choice([1, groups]), int(rng.choice([16, 100, 128]))
    dtype, n_tokens = int(rng.integers(3)), int(rng.integers(1, 9000))
    shape = BlockShape(ctypes.sizeof(BlockShape), groups * per_group, groups, key_heads, dim, dtype, block, 16, 0, 1,
                       dim**-0.5)
    packed, keys = random_keys(rng, dtype, (n_tokens, key_heads, dim))
    query = rng.standard_normal((groups * per_group, dim)).astype(np.float32)
    out = lib.select("block", shape, packed, n_tokens, query, np.empty((groups, 16 * block), np.int32))
    scores, error = dots(keys, query.astype(np.float64), shape.scale)
    scores = scores.reshape(groups, per_group, n_tokens).max(1)
    starts = np.arange(0, n_tokens, block)
    for g in range(groups):
        best = np.maximum.reduceat(scores[g], starts)
        tally.compare(out[g], best, np.full(len(starts), error.max()), forced_blocks(len(starts), 0, 1), block,
                      n_tokens, 16)


def check_exact(lib, rng, tally):
    group, kv, dim = rng.choice([1, 4, 7]), rng.choice([1, 4]), rng.choice([16, 50, 128])
    dtype, n_tokens, k = int(rng.integers(3)), int(rng.integers(1, 9000)), int(rng.choice([1, 64, 1000]))
    n_selections = int(rng.choice([1, kv]))
    shape = ExactShape(ctypes.sizeof(ExactShape), group * kv, kv, dim, dtype, n_selections, dim**-0.5)
    packed, keys = random_keys(rng, dtype, (n_tokens, kv, dim))
    query = rng.standard_normal((group * kv, dim)).astype(np.float32)
    out = lib.select("exact", shape, packed, n_tokens, query, np.empty((n_selections, k), np.int32), k)
    p, error = probabilities(keys, query.astype(np.float64), shape.scale)
    for i, score in enumerate(p.reshape(n_selections, -1, n_tokens).sum(1)):
        # a weight below e^-87 of the greatest is 0, and those among them tie
        tally.compare(out[i], score, score * error + group * kv * np.exp(-87.0), np.zeros(n_tokens, bool), 1, n_tokens,
                      k)


def check_quest(lib, rng, tally):
    group, kv, dim, page, k = rng.choice([1, 4]), rng.choice([1, 4]), rng.choice([16, 50, 128]), 16, 512
    dtype, n_tokens = int(rng.integers(3)), int(rng.integers(1, 9000))
    shape = QuestShape(ctypes.sizeof(QuestShape), group * kv, kv, dim, page, dtype)
    packed, keys = random_keys(rng, dtype, (n_tokens, kv, dim))
    query = rng.standard_normal((group * kv, dim)).astype(np.float32)
    stats, scratch = lib.scratch("hsp_quest_bytes", shape, n_tokens), lib.scratch("hsp_quest_scratch", shape, n_tokens)
    stride = ctypes.c_size_t(kv * dim * packed.itemsize)
    assert lib.c.hsp_quest_update(ctypes.byref(shape), address(stats), address(packed), stride, 0, n_tokens) == 0
    groups, one = np.empty((kv, k), np.int32), np.empty(k, np.int32)
    for name, out in (("hsp_quest_select_groups", groups), ("hsp_quest_select", one)):
        assert getattr(lib.c, name)(ctypes.byref(shape), address(stats), n_tokens, address(query), k, address(out),
                                    address(scratch)) == 0
    starts = np.arange(0, n_tokens, page)
    mean = query.astype(np.float64).reshape(kv, group, dim).mean(1)
    below = mean * np.minimum.reduceat(keys, starts)
    above = mean * np.maximum.reduceat(keys, starts)
    scores = np.maximum(below, above).sum(2)
    error = (kv * dim / 16 + 12 + group) * U * np.maximum(abs(below), abs(above)).sum(2).max()
    error = np.full(len(starts), error + group * U * np.abs(query).max() * np.abs(keys).max() * dim) * kv
    for got, score in zip(list(groups) + [one], list(scores.T) + [scores.sum(1)]):
        tally.compare(got, score, error, forced_blocks(len(starts), 0, 1), page, n_tokens, k // page)


def main():
    lib, bad = Library(sys.argv[1]), 0
    checks = (("NSA", check_nsa), ("block", check_block), ("exact", check_exact), ("Quest", check_quest))
    for number, (name, check) in enumerate(checks, 1):
        rng, tally = np.random.default_rng(number), Tally()
        for _ in range(100):
            check(lib, rng, tally)
        bad += tally.wrong > 0
        print("%s %d - %s selects what numpy selects" % ("not ok" if tally.wrong else "ok", number, name))
        print("# %d selections, %d differ where two scores are closer than the float error, %d wrong" %
              (tally.selections, tally.ties, tally.wrong))
    print("1..%d" % len(checks))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
