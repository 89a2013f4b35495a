#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`hisparse run` on tiny models of every architecture of docs/models.md, and on everything that can be wrong with their files.

usage: test_run_small.py BUILD_DIR     prints TAP
"""
import json
import os
import random
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_run as t  # noqa: E402
import make_tiny_safetensors as tiny  # noqa: E402

ARCHITECTURES = {"gqa_quest": "quest", "gqa_nsa": "nsa", "mla_dsa": "dsa"}
TEXT = t.TEXT * 3
DECODE = ["--max-tokens", "24", "--threads", "1"]


def model_file(architecture, **changes):
    name = "_".join([architecture, *map(str, changes.values())]) + ".safetensors"
    if not os.path.exists(name):
        with open(name, "wb") as out:
            out.write(tiny.model(tiny.shape_of(architecture, **changes)))
    return name


def usual(model):
    return ["--model", model, "--prompt", TEXT, *DECODE]


# Good runs

def every_architecture_is_verified():
    for architecture in ARCHITECTURES:
        for slots in ("64", "128", "256"):
            out, _ = t.run(*usual(model_file(architecture)), "--slots", slots, "--verify")
            assert b"\nverified: 24 steps, every one of 256 logits bit-identical to all-resident\n" in out, out
    out, _ = t.run(*usual(model_file("mla_dsa", index_dtype="bf16")), "--slots", "64", "--verify")
    assert b"\nverified: 24 steps" in out, out


def tokens_are_bytes():
    prompt = bytes(range(1, 256)) * 2
    with open("bytes", "wb") as out:
        out.write(b"\0" + prompt)
    for architecture in ARCHITECTURES:
        args = ["--model", model_file(architecture), "--prompt-file", "bytes", *DECODE]
        r = t.run_json(*args, "--context", "300")
        assert (r["prompt_tokens"], r["prompt_tokens_in_text"]) == (276, 511), r
        assert t.run_json(*args, "--context", "512")["prompt_tokens"] == 488
        assert r["generated_tokens"] == 24, r  # no byte ends a text


def json_tells_the_stores():
    row = {"gqa_quest": 2 * 2 * 8 * 2, "gqa_nsa": 2 * 8 * 2, "mla_dsa": (24 + 8) * 2}
    for architecture in ARCHITECTURES:
        r = t.run_json(*usual(model_file(architecture)), "--slots", "100", "--verify")
        assert sorted(r) == sorted(t.FIELDS), sorted(r)
        stores = 2 if architecture == "gqa_nsa" else 1
        want = [(layer, head) for layer in range(3) for head in (range(2) if stores == 2 else [None])]
        assert [(x["layer"], x["kv_head"]) for x in r["layers"]] == want, r["layers"]
        assert [x["dense"] for x in r["layers"]] == [architecture == "gqa_quest" and x["layer"] < 1 for x in r["layers"]]
        assert r["top_k"] == 64 and r["selector_bytes"] > 0 and r["verify"] == {"identical": True, "steps": 24}
        assert r["resident_bytes"] == 3 * stores * (len(TEXT) + 24) * row[architecture], r
        assert r["fetched_bytes"] == r["misses"] * row[architecture]
        for name in ("hits", "misses", "fetched_bytes"):
            assert r[name] == sum(x[name] for x in r["layers"]), name


def text_is_the_same_everywhere():
    for architecture, selector in ARCHITECTURES.items():
        args = usual(model_file(architecture))
        want = t.generated(*args)
        for extra in (["--backend", "ref", "--slots", "64"], ["--policy", "clock", "--slots", "70"], ["--host-file", "rows"],
                      ["--slots", "1000"], ["--selector", selector], ["--top-k", "64"], ["--policy", "random", "--slots", "80"]):
            assert t.generated(*args, *extra) == want, (architecture, extra)


def top_k_may_be_another():
    for architecture in ("gqa_quest", "mla_dsa"):
        r = t.run_json(*usual(model_file(architecture)), "--top-k", "128", "--slots", "128", "--verify")
        assert r["top_k"] == 128 and r["verify"]["identical"], r


def short_prompts():
    for architecture in ARCHITECTURES:
        for prompt in ("t", "the", "the and that"):
            out, _ = t.run("--model", model_file(architecture), "--prompt", prompt, "--verify", *DECODE)
            assert b"\nverified: 24 steps" in out, out


# On a GPU

def cuda():
    """What `hisparse info` says of the backend; a test ends here without a device."""
    info = json.loads(t.subprocess.run([t.HISPARSE, "info", "--json"], stdout=t.subprocess.PIPE, check=True).stdout)
    mine = [b for b in info["backends"] if b["name"] == "cuda"]
    if not mine or not mine[0]["runs"]:
        raise t.Skip("no device")


GPU_SHAPES = {"gqa_quest": dict(head_dim=16), "gqa_nsa": dict(head_dim=16), "mla_dsa": dict(latent_dim=32, rope_dim=16)}


def cuda_models():
    return [model_file(a, **changes) for a, changes in GPU_SHAPES.items()] + [t.plain_model()]


def cuda_is_verified():
    cuda()
    for model in cuda_models():
        for slots in ("64", "128", "256"):
            out, _ = t.run("--model", model, "--prompt", TEXT, "--top-k", "64", "--max-tokens", "24", "--ignore-eos",
                           "--backend", "cuda", "--slots", slots, "--verify")
            assert b"\nverified: 24 steps, every one of " in out, out


def cuda_json():
    cuda()
    for model in cuda_models():
        r = t.run_json("--model", model, "--prompt", TEXT, "--top-k", "64", "--max-tokens", "24", "--ignore-eos",
                       "--backend", "cuda", "--slots", "100", "--verify", "--metrics-file", "gpu_metrics")
        assert sorted(r) == sorted(t.FIELDS), sorted(r)
        assert (r["backend"], r["ops_target"], r["generated_tokens"]) == ("cuda", "cuda", 24), r
        assert r["swap_in_share_selecting"] is None and r["swap_in_share_dense"] is None
        assert r["decode_tokens_per_second"] > 0 and r["hits"] > 0 and r["misses"] > 0
        lines = [json.loads(line) for line in open("gpu_metrics")]
        assert sum(line["misses"] for line in lines) == r["misses"] and lines[0]["swap_in_seconds"] is None


def cuda_short_prompts():
    cuda()
    for model in cuda_models():
        for prompt in ("t", "the"):
            out, _ = t.run("--model", model, "--prompt", prompt, "--max-tokens", "5", "--ignore-eos", "--backend", "cuda", "--verify")
            assert b"\nverified: 5 steps" in out, out


def cuda_refuses_what_it_cannot_do():
    cuda()
    args = ["--prompt", TEXT, "--max-tokens", "24", "--backend", "cuda"]
    t.refused("--model", model_file("gqa_quest"), *args, code=3, says=["heads of 8 and 8 channels", "multiple of 16"])
    t.refused("--model", cuda_models()[0], *args, "--threads", "2", says=["--threads is 2", "cuda"])
    t.refused("--model", cuda_models()[0], *args, "--host-file", "rows", says=["cannot keep rows in a file"])


def cuda_is_refused_without_a_device():
    try:
        cuda()
    except t.Skip:
        t.refused("--model", model_file("gqa_quest"), "--prompt", "x", "--backend", "cuda", says=["backend 'cuda' cannot run here"])
        return
    raise t.Skip("there is a device")


# Bad options

def wrong_options():
    nsa = model_file("gqa_nsa")
    t.refused(*usual(nsa), "--top-k", "128", says=["--top-k is 128", "64 tokens"])
    t.refused(*usual(nsa), "--slots", "63", says=["--slots is 63; it must be at least top-k, 64"])
    t.refused(*usual(nsa), "--selector", "quest", says=["--selector is 'quest'"])
    t.refused(*usual(model_file("mla_dsa")), "--selector", "nsa", says=["--selector is 'nsa'"])
    t.refused(*usual(t.plain_model()), "--selector", "dsa", says=["--selector is 'dsa'"])
    t.refused(*usual(model_file("mla_dsa")), "--top-k", "96", says=["--top-k is 96; it must be a multiple of 64"])


# Bad files

def bad_model(data, *says):
    with open("bad.safetensors", "wb") as out:
        out.write(data)
    t.refused(*usual("bad.safetensors"), says=["--model: bad.safetensors: ", *says])


def whole(architecture="gqa_quest"):
    return open(model_file(architecture), "rb").read()


def missing_files():
    t.refused(*usual("nowhere.safetensors"), says=["--model: nowhere.safetensors: cannot be opened: No such file"])
    os.mkdir("folder.safetensors")
    t.refused(*usual("folder.safetensors"), says=["folder.safetensors: not a regular file"])
    bad_model(b"", "the file is empty")
    bad_model(b"hello", "offset 0: ")


def truncated_models():
    for architecture in ARCHITECTURES:
        data = whole(architecture)
        for n in (1, 7, 8, 9, 60, 700, len(data) // 2, len(data) - 1):
            bad_model(data[:n], "offset ")
        bad_model(data + b"\0", "offset %d: 1 bytes follow that belong to no tensor" % len(data))


def hostile_bytes():
    """Lengths beyond reason, then bytes turned at random in everything before the weights."""
    rng = random.Random(5)
    for architecture in ARCHITECTURES:
        data = whole(architecture)
        for length in (0, 2**20 + 1, 2**40, 2**63, 2**64 - 1):
            bad_model(struct.pack("<Q", length) + data[8:], "offset 0: header of %d bytes" % length)
        end = struct.unpack("<Q", data[:8])[0] + 8
        for _ in range(20):
            turned = bytearray(data)
            for _ in range(rng.randint(1, 4)):
                turned[rng.randrange(end)] = rng.randrange(256)
            with open("bad.safetensors", "wb") as out:
                out.write(turned)
            code, _, err = t.finish(t.start(*usual("bad.safetensors")))
            assert code in (0, 2), f"exit code {code}: {err!r}"
            assert code == 0 or err.startswith("hisparse: ") and err.count("\n") == 1, err


def changed_model(architecture, key, value):
    """A model whose metadata says something else than its tensors are; None leaves the key out."""
    s = tiny.shape_of(architecture)
    entries = [(name, shape, bytes(2 * elements(shape))) for name, shape in tiny.tensors(s)]
    said = {k: v for k, v in {**s, key: value}.items() if v is not None}
    return tiny.safetensors(entries, {"format": "pt", "hisparse": json.dumps(said)})


def elements(shape):
    n = 1
    for dim in shape:
        n *= dim
    return n


def wrong_metadata():
    for architecture, key, value, *says in (
            ("gqa_quest", "architecture", "gqa", "architecture: missing, or not one of"),
            ("gqa_quest", "architecture", None, "architecture: missing"),
            ("gqa_quest", "architecture", 7, "architecture: missing"),
            ("gqa_quest", "architecture", "gqa_nsa", "compress_tokens: missing"),
            ("gqa_quest", "n_layers", 0, "n_layers: is 0; it may be 1..1024"),
            ("gqa_quest", "n_layers", 4, "layers.3.attention_norm: no such tensor"),
            ("gqa_quest", "n_layers", 2**62, "is 4611686018427387904"),
            ("gqa_quest", "n_layers", 3.0, "n_layers: missing, or not an integer"),
            ("gqa_quest", "n_layers", "3", "n_layers: missing, or not an integer"),
            ("gqa_quest", "embedding", 64, "embedding: has shape [256, 32]; the metadata asks for [256, 64]"),
            ("gqa_quest", "embedding", 2**17, "asks for [256, 131072]"),
            ("gqa_quest", "vocab", 257, "vocab: is 257; it may be 256..256"),
            ("gqa_quest", "ffn", 2**20, "layers.0.gate: has shape [48, 32]", "[1048576, 32]"),
            ("gqa_quest", "context", 0, "context: is 0"),
            ("gqa_quest", "norm_epsilon", 0, "norm_epsilon: missing, or not a positive number"),
            ("gqa_quest", "norm_epsilon", None, "norm_epsilon: missing"),
            ("gqa_quest", "rope_theta", -1.5, "rope_theta: missing, or not a positive number"),
            ("gqa_quest", "n_heads", 5, "n_heads: is 5; it must be a multiple of the KV heads, 2"),
            ("gqa_quest", "n_kv_heads", 0, "n_kv_heads: is 0"),
            ("gqa_quest", "n_kv_heads", 1, "layers.0.key: has shape [16, 32]; the metadata asks for [8, 32]"),
            ("gqa_quest", "head_dim", 7, "head_dim: is 7; it must be even"),
            ("gqa_quest", "dense_layers", 4, "dense_layers: is 4; it may be 0..3"),
            ("gqa_quest", "page_tokens", 24, "page_tokens: is 24; it must divide 64"),
            ("gqa_quest", "top_k", 100, "top_k: is 100; it must be a multiple of 64"),
            ("gqa_quest", "top_k", 2**17, "top_k: is 131072"),
            ("gqa_nsa", "compress_stride", 3, "compress_stride: is 3; it must divide compress_tokens, 8"),
            ("gqa_nsa", "block_tokens", 18, "compress_stride: is 4", "block_tokens, 18"),
            ("gqa_nsa", "n_blocks", 2, "n_blocks: is 2; n_first and n_local are 3 together"),
            ("gqa_nsa", "n_blocks", 65536, "n_blocks: is 65536, of 16 tokens each"),
            ("gqa_nsa", "n_first", -1, "n_first: is -1; it may be 0..65536"),
            ("gqa_nsa", "window", 0, "window: is 0"),
            ("gqa_nsa", "compress_tokens", 16, "layers.0.compress_key_mix: has shape [2, 8, 8]", "[2, 16, 8]"),
            ("mla_dsa", "latent_dim", 0, "latent_dim: is 0"),
            ("mla_dsa", "rope_dim", 9, "rope_dim: is 9; it must be even"),
            ("mla_dsa", "nope_dim", 13, "layers.0.query: has shape [80, 32]; the metadata asks for [84, 32]"),
            ("mla_dsa", "value_dim", 11, "layers.0.value_up: has shape [4, 10, 24]", "[4, 11, 24]"),
            ("mla_dsa", "index_dtype", "fp8", "index_dtype: missing, or not one of bf16 and e4m3"),
            ("mla_dsa", "index_dim", 24, "index_dim: is 24; it must be a power of two"),
            ("mla_dsa", "index_rope_dim", 32, "index_rope_dim: is 32; it may be 2..16"),
            ("mla_dsa", "index_heads", 4, "layers.0.index_query: has shape [48, 32]", "[64, 32]")):
        bad_model(changed_model(architecture, key, value), "offset ", *says)
    for text, says in ((None, "no text \"hisparse\""), ("", "hisparse: "), ("[1]", "not a JSON object"), ("{", "hisparse: ")):
        bad_model(tiny.safetensors([], {} if text is None else {"hisparse": text}), "offset ", says)


def weights_of_whole_numbers():
    """A type that the reader of files knows, for traces, and a model cannot have: as many bytes as two of BF16."""
    data = whole()
    end = struct.unpack("<Q", data[:8])[0] + 8
    header = json.loads(data[8:end])
    one = header["embedding"]
    one["dtype"] = "I32"
    added = one["data_offsets"][1] - one["data_offsets"][0]
    for name, entry in header.items():
        if name != "__metadata__":
            entry["data_offsets"] = [at + added * (at > 0) for at in entry["data_offsets"]]
    text = json.dumps(header).encode()
    bad_model(struct.pack("<Q", len(text)) + text + bytes(added) + data[end:], "embedding: is of whole numbers")


TESTS = [every_architecture_is_verified, tokens_are_bytes, json_tells_the_stores, text_is_the_same_everywhere,
         top_k_may_be_another, short_prompts, cuda_is_verified,
         cuda_json, cuda_short_prompts, cuda_refuses_what_it_cannot_do, cuda_is_refused_without_a_device, wrong_options, missing_files, truncated_models, hostile_bytes, wrong_metadata,
         weights_of_whole_numbers]


if __name__ == "__main__":
    sys.exit(t.main(TESTS))
