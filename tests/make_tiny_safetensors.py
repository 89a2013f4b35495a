#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write a model with random weights as a safetensors file, of any shape of docs/models.md: the right tensors, no sense in
its words. The same options give the same bytes. Only the Python standard library is needed.

usage: make_tiny_safetensors.py ARCHITECTURE FILE [KEY=VALUE ...]     keys of the metadata; --full: the shapes of models/
"""
import json
import random
import struct
import sys

COMMON = dict(n_layers=3, embedding=32, ffn=48, vocab=256, context=512, norm_epsilon=1e-5, rope_theta=5e5, n_heads=4)
TINY = {
    "gqa_quest": dict(n_kv_heads=2, head_dim=8, dense_layers=1, page_tokens=16, top_k=64),
    "gqa_nsa": dict(n_kv_heads=2, head_dim=8, compress_tokens=8, compress_stride=4, block_tokens=16, n_blocks=4, n_first=1,
                    n_local=2, window=24),
    "mla_dsa": dict(latent_dim=24, rope_dim=8, nope_dim=12, value_dim=10, index_heads=3, index_dim=16, index_rope_dim=8,
                    index_dtype="e4m3", top_k=64),
}
FULL_COMMON = dict(COMMON, n_layers=6, embedding=256, ffn=1024, context=33024, n_heads=8)
FULL = {
    "gqa_quest": dict(n_kv_heads=2, head_dim=32, dense_layers=2, page_tokens=16, top_k=512),
    "gqa_nsa": dict(n_kv_heads=2, head_dim=32, compress_tokens=32, compress_stride=16, block_tokens=64, n_blocks=8, n_first=1,
                    n_local=2, window=256),
    "mla_dsa": dict(latent_dim=128, rope_dim=32, nope_dim=32, value_dim=32, index_heads=8, index_dim=64, index_rope_dim=32,
                    index_dtype="e4m3", top_k=512),
}


def gqa_tensors(s):
    e, q, kv = s["embedding"], s["n_heads"] * s["head_dim"], s["n_kv_heads"] * s["head_dim"]
    return [("query", [q, e]), ("key", [kv, e]), ("value", [kv, e]), ("attention_output", [e, q])]


def nsa_tensors(s):
    g, d, span = s["n_kv_heads"], s["head_dim"], s["compress_tokens"]
    return gqa_tensors(s) + [("branch_gate", [s["n_heads"] * 3, s["embedding"]])] + [
        (f"compress_{what}_{part}", shape) for what in ("key", "value")
        for part, shape in (("mix", [g, span, d]), ("projection", [g, d, d]))]


def dsa_tensors(s):
    e, h, latent = s["embedding"], s["n_heads"], s["latent_dim"]
    return [("query", [h * (s["nope_dim"] + s["rope_dim"]), e]), ("latent", [latent, e]), ("latent_norm", [latent]),
            ("rope_key", [s["rope_dim"], e]), ("key_up", [h, s["nope_dim"], latent]), ("value_up", [h, s["value_dim"], latent]),
            ("attention_output", [e, h * s["value_dim"]]), ("index_query", [s["index_heads"] * s["index_dim"], e]),
            ("index_key", [s["index_dim"], e]), ("index_key_norm_weight", [s["index_dim"]]),
            ("index_key_norm_bias", [s["index_dim"]]), ("index_weight", [s["index_heads"], e])]


ATTENTION = {"gqa_quest": gqa_tensors, "gqa_nsa": nsa_tensors, "mla_dsa": dsa_tensors}


def tensors(s):
    """Names and shapes of everything a model of this shape has."""
    e, f = s["embedding"], s["ffn"]
    layer = [("attention_norm", [e]), ("ffn_norm", [e]), ("gate", [f, e]), ("up", [f, e]), ("down", [e, f])]
    return [("embedding", [s["vocab"], e]), ("norm", [e]), ("output", [s["vocab"], e])] + [
        (f"layers.{i}.{name}", shape) for i in range(s["n_layers"]) for name, shape in layer + ATTENTION[s["architecture"]](s)]


def bfloat16(values):
    floats = struct.pack(f"<{len(values)}f", *values)
    packed = bytearray(len(values) * 2)
    packed[0::2], packed[1::2] = floats[2::4], floats[3::4]
    return bytes(packed)


def tensor_data(rng, name, shape):
    """Norms lie around 1, a mix averages its span, and every other product keeps the size of what comes in, more or less."""
    n = 1
    for dim in shape:
        n *= dim
    if "norm" in name and "bias" not in name:
        return bfloat16([1 + 0.3 * (rng.random() - 0.5) for _ in range(n)])
    if name.endswith("mix"):
        return bfloat16([2 * rng.random() / shape[1] for _ in range(n)])
    spread = 2 * (6 / shape[-1]) ** 0.5
    return bfloat16([spread * (rng.random() - 0.5) for _ in range(n)])


def shape_of(architecture, full=False, **changes):
    common, own = (FULL_COMMON, FULL) if full else (COMMON, TINY)
    return {**common, "architecture": architecture, **own[architecture], **changes}


def safetensors(entries, metadata):
    """The bytes of a file of (name, shape, bfloat16 bytes) and texts of metadata."""
    header, at = {"__metadata__": metadata}, 0
    for name, shape, data in entries:
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in entries)


def model(s):
    rng = random.Random(7)
    entries = [(name, shape, tensor_data(rng, name, shape)) for name, shape in tensors(s)]
    return safetensors(entries, {"format": "pt", "hisparse": json.dumps(s)})


def main(arguments):
    full = "--full" in arguments
    architecture, path, *changes = [a for a in arguments if a != "--full"]
    changes = {key: json.loads(value) for key, value in (change.split("=", 1) for change in changes)}
    with open(path, "wb") as out:
        out.write(model(shape_of(architecture, full, **changes)))


if __name__ == "__main__":
    main(sys.argv[1:])
