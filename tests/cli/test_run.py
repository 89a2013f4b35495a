#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`hisparse run` on tiny models of every kind, and on everything that can be wrong with its files and options.

usage: test_run.py BUILD_DIR     prints TAP
"""
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import make_tiny_gguf as tiny  # noqa: E402

HISPARSE = os.path.join(os.path.abspath(sys.argv[1]), "bin", "hisparse")
TEXT = "the and that was his with for they have from had not are but what all were when your said there "
FIELDS = ("version model backend prompt_tokens prompt_tokens_in_text generated_tokens top_k slots ops_target text stopped "
          "prefill_tokens_per_second decode_tokens_per_second resident_tokens_per_second swap_in_share_selecting "
          "swap_in_share_dense hits misses fetched_bytes device_bytes resident_bytes selector_bytes layers verify").split()
DECODE = ["--top-k", "64", "--slots", "64", "--max-tokens", "24", "--threads", "1", "--ignore-eos"]
SANITIZED = any(name in open(HISPARSE, "rb").read() for name in (b"__asan_init", b"__tsan_init"))
LIMIT_SECONDS = 300


class Skip(Exception):
    """A test that does not apply here; the text says why."""


# Running

def limit_memory():
    if not SANITIZED:  # sanitizers reserve terabytes of addresses
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))


def start(*args, command="run", **kwargs):
    limit = None if "cuda" in args else limit_memory  # a GPU's driver, too, reserves terabytes
    return subprocess.Popen([HISPARSE, command, *args], stderr=subprocess.PIPE, preexec_fn=limit,
                            **{"stdout": subprocess.PIPE, **kwargs})


def finish(process):
    out, err = process.communicate(timeout=LIMIT_SECONDS)
    return process.returncode, out or b"", err.decode(errors="replace")


def run(*args, code=0, **kwargs):
    """Standard output and error of a run that must end with `code`."""
    got, out, err = finish(start(*args, **kwargs))
    assert got == code, f"exit code {got}, not {code}; {err!r}"
    return out, err


def refused(*args, code=2, says=(), **kwargs):
    out, err = run(*args, code=code, **kwargs)
    for part in says:
        assert part in err, f"{part!r} is not in {err!r}"
    assert err.count("\n") == 1 and err.startswith("hisparse"), f"not one line: {err!r}"
    return out


def run_json(*args, code=0):
    return json.loads(run(*args, "--json", code=code)[0])


def generated(*args):
    return run_json(*args)["text"]


def make(name, *options):
    if not os.path.exists(name):
        tiny.main(["--out", name, *options])
    return name


def plain_model():
    return make("plain.gguf", "--layers", "3")


def usual(model=None, length=8):
    return ["--model", model or plain_model(), "--prompt", TEXT * length, *DECODE]


# Good runs

def every_type_is_verified():
    for vocabulary in ("gpt2", "llama"):
        for kind in tiny.TYPES:
            model = make(f"{kind}_{vocabulary}.gguf", "--type", kind, "--vocab", vocabulary, "--layers", "3", "--ffn", "256")
            out, _ = run(*usual(model), "--verify")
            assert b"\nverified: 24 steps, every one of " in out, out


def json_has_every_field():
    r = run_json(*usual(), "--verify")
    assert sorted(r) == sorted(FIELDS), sorted(r)
    prompt, steps, row = r["prompt_tokens"], 24, 2 * 2 * 16 * 2
    assert (r["generated_tokens"], r["top_k"], r["slots"], r["backend"]) == (steps, 64, 64, "cpu"), r
    assert r["prompt_tokens_in_text"] == prompt and not r["stopped"]
    assert r["verify"] == {"identical": True, "steps": steps}
    assert r["text"] and r["model"] == plain_model()
    assert [x["layer"] for x in r["layers"]] == [0, 1, 2] and [x["dense"] for x in r["layers"]] == [True, True, False]
    for name in ("hits", "misses", "fetched_bytes"):
        assert r[name] == sum(x[name] for x in r["layers"]), name
    assert r["fetched_bytes"] == r["misses"] * row
    for layer in r["layers"][:2]:
        assert layer["hits"] + layer["misses"] == sum(prompt + i for i in range(steps)), layer
    assert 48 * steps < r["layers"][2]["hits"] + r["layers"][2]["misses"] <= 64 * steps
    assert r["resident_bytes"] == 3 * (prompt + steps) * row
    assert 0 < r["device_bytes"] < r["resident_bytes"] and r["selector_bytes"] > 0
    for name in ("prefill", "decode", "resident"):
        assert r[name + "_tokens_per_second"] > 0
    assert 0 <= r["swap_in_share_selecting"] <= 1 and 0 <= r["swap_in_share_dense"] <= 1
    assert run_json(*usual())["verify"] is None and run_json(*usual())["resident_tokens_per_second"] is None


def text_is_the_same_everywhere():
    want = generated(*usual())
    for extra in (["--backend", "ref"], ["--backend", "cpu"], ["--policy", "fifo"], ["--policy", "random", "--seed", "3"],
                  ["--policy", "clock"], ["--policy", "lru"], ["--host-file", "rows"], ["--threads", "2"],
                  ["--slots", "500"], ["--backend", "ref", "--policy", "clock", "--slots", "70", "--threads", "2"]):
        assert generated(*usual(), *extra) == want, extra
    assert not os.path.exists("rows")
    assert want.encode() in run(*usual())[0] or "\ufffd" in want
    assert generated("--model", plain_model(), "--prompt-file", text_file(TEXT * 8), *DECODE) == want


def draws_follow_their_seed():
    draws = [generated(*usual(), "--temperature", "1", "--seed", seed) for seed in ("1", "1", "2")]
    assert draws[0] == draws[1] != draws[2]


def short_prompts_and_wide_selections():
    """Fewer tokens than a page, fewer than top-k, one alone."""
    for prompt in ("t", "the", TEXT):
        out, _ = run("--model", plain_model(), "--prompt", prompt, "--max-tokens", "5", "--verify", "--ignore-eos",
                     "--threads", "1")
        assert b"verified: 5 steps" in out
        assert b"x larger: the text is shorter than the slots\n" in out, out


def reading_is_announced():
    """A run that is not on a terminal shows nothing else until its first token; JSON is for programs."""
    n = run_json(*usual())["prompt_tokens"]
    out, err = run(*usual())
    assert err == f"reading {n} tokens\n", err
    assert b"\nlayer       hit %  missed rows  hit rows  fetched bytes\n" in out and b"x smaller\n" in out, out
    assert run(*usual(), "--json")[1] == ""


def metrics_sum_up():
    r = run_json(*usual(), "--metrics-file", "metrics")
    lines = [json.loads(line) for line in open("metrics")]
    assert [line["step"] for line in lines] == list(range(24))
    for name in ("hits", "misses", "fetched_bytes"):
        assert sum(line[name] for line in lines) == r[name], name
    for line in lines:
        assert sorted(line) == sorted("step token seconds swap_in_seconds hits misses fetched_bytes".split())
        assert 0 <= line["swap_in_seconds"] <= line["seconds"]


def samples(path):
    """Numbers of a file of Prometheus text, {name: {layer: number}}."""
    found = {}
    for name, layer, number in re.findall(r'^hisparse_(\w+)\{backend="cpu"(?:,layer="(\d+)")?\} (\d+)$', open(path).read(), re.M):
        found.setdefault(name, {})[layer] = int(number)
    return found


def metrics_for_prometheus():
    r = run_json(*usual(), "--metrics-file", "m.prom")
    found = samples("m.prom")
    assert sorted(found["misses_total"]) == ["0", "1", "2"], found
    for name in ("hits", "misses", "fetched_bytes"):
        assert sum(found[name + "_total"].values()) == r[name], name
    assert found["steps_total"][""] > 0 and found["live_requests"] == {"": 1}, found
    assert [name for name in os.listdir() if name.startswith("m.prom")] == ["m.prom"]
    refused(*usual(), "--metrics-file", "nowhere/m.prom", says=["nowhere/m.prom", "No such file"])


def promtool_finds_nothing():
    if not shutil.which("promtool"):
        raise Skip("promtool of Debian's package prometheus is not installed")
    run(*usual(), "--metrics-file", "checked.prom")
    done = subprocess.run(["promtool", "check", "metrics"], stdin=open("checked.prom"), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True)
    assert done.returncode == 0 and done.stdout == "", done.stdout


def long_prompts_are_cut():
    args = [*usual(length=40), "--context", "100"]
    assert b"\nprompt: the first 76 of " in run(*args)[0]
    r = run_json(*args)
    assert r["prompt_tokens"] == 76 and r["prompt_tokens_in_text"] > 800, r
    assert run_json(*usual(make("llama.gguf", "--vocab", "llama"), 40), "--context", "100")["prompt_tokens"] == 76


# Bad files

def text_file(text):
    with open("prompt", "w") as out:
        out.write(text)
    return "prompt"


def bad_model(data, *says):
    with open("bad.gguf", "wb") as out:
        out.write(data)
    refused(*usual("bad.gguf"), says=["--model: bad.gguf: ", *says])


def missing_and_wrong_files():
    refused(*usual("nowhere.gguf"), says=["--model: nowhere.gguf: cannot be opened: No such file"])
    refused(*usual("."), says=["--model: .: not a regular file"])
    refused(*usual(text_file("hello")), says=["prompt", "offset 0"])
    for path, why in (("nowhere", "No such file"), (".", "not a regular file"), ("/dev/null", "not a regular file")):
        refused("--model", plain_model(), "--prompt-file", path, says=["--prompt-file", path, why])
    os.mkfifo("pipe")
    refused("--model", plain_model(), "--prompt-file", "pipe", says=["pipe", "not a regular file"])


def truncated_models():
    data = open(plain_model(), "rb").read()
    for n in (0, 3, 4, 23, 24, 60, 700, 5000, 9000, len(data) // 2, len(data) - 1):
        bad_model(data[:n], *(["offset"] if n else []))


def hostile_bytes():
    """Sizes beyond reason where sizes are, then bytes turned at random in everything before the weights."""
    data = open(plain_model(), "rb").read()
    for at in (8, 16, 24):
        for value in (2**63, 2**64 - 1, 2**40):
            bad_model(data[:at] + struct.pack("<Q", value) + data[at + 8:], "offset")
    bad_model(data[:4] + struct.pack("<I", 99) + data[8:], "offset 4", "99")
    rng = random.Random(5)
    end = data.index(b"blk.2.ffn_down.weight") + 60
    for _ in range(25):
        turned = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            turned[rng.randrange(end)] = rng.randrange(256)
        with open("bad.gguf", "wb") as out:
            out.write(turned)
        code, _, err = finish(start(*usual("bad.gguf", 1)))
        assert code in (0, 2), f"exit code {code}: {err!r}"
        assert code == 0 or err.startswith("hisparse: "), err


def changed_model(**changes):
    """The bytes of a model with some of its metadata changed; None leaves a key out."""
    options = tiny.parse_options(["--out", "x", "--layers", "3"])
    rng = random.Random(1)
    tokens, vocabulary = tiny.gpt2_vocabulary()
    tensors = [(name, dims, tiny.tensor_data(rng, options, dims, std))
               for name, dims, std in tiny.tensors(options, len(tokens)) if changes.get("tensor") != name]
    keys = []
    for key, kind, content in tiny.metadata(options, len(tokens)) + vocabulary:
        name = key.split(".")[-1]
        if changes.get(name, 0) is not None:
            keys.append((key, kind, changes.get(name, content)))
    if "scaling" in changes:
        keys.append(("llama.rope.scaling.type", tiny.STRING, changes["scaling"]))
    return tiny.gguf(keys, tensors, 0)


def wrong_metadata():
    for key, value, *says in (
            ("architecture", "qwen", "general.architecture", "llama"),
            ("block_count", 0, "llama.block_count", "is 0", "1..1024"),
            ("block_count", 4000000000, "llama.block_count", "is 4000000000", "1..1024"),
            ("block_count", 4, "blk.3.attn_norm.weight", "no such tensor"),
            ("block_count", None, "llama.block_count", "missing"),
            ("dimension_count", 32, "llama.rope.dimension_count", "is 32", "which is 16"),
            ("embedding_length", 66, "llama.attention.head_count", "is 4", "66"),
            ("feed_forward_length", 2**20, "ffn_gate", "shape [64, 128]", "[64, 1048576]"),
            ("head_count", 0, "llama.attention.head_count", "is 0"),
            ("head_count", 5, "llama.attention.head_count", "is 5", "divide", "64"),
            ("head_count_kv", 3, "llama.attention.head_count", "multiple", "3"),
            ("head_count_kv", 2000, "llama.attention.head_count_kv", "is 2000", "1..1024"),
            ("context_length", 0, "llama.context_length", "is 0"),
            ("freq_base", -1.0, "llama.rope.freq_base", "is -1", "positive"),
            ("layer_norm_rms_epsilon", 0.0, "epsilon", "positive"),
            ("scaling", "yarn", "llama.rope.scaling.type", "yarn"),
            ("tensor", "output_norm.weight", "output_norm.weight", "no such tensor"),
            ("tensor", "blk.2.ffn_down.weight", "blk.2.ffn_down.weight", "no such tensor"),
            ("tokens", None, "tokenizer.ggml.tokens"),
            ("merges", None, "tokenizer.ggml.merges"),
            ("model", "bert", "tokenizer.ggml.model")):
        bad_model(changed_model(**{key: value}), *says)


# Bad options

def bad_options():
    for extra, *says in (
            (["--prompt", ""], "prompt", "empty"),
            (["--top-k", "100"], "--top-k is 100; it must be a multiple of 64"),
            (["--top-k", "0"], "--top-k", "'0'", "64.."),
            (["--top-k", "128"], "--slots is 64; it must be at least top-k, 128"),
            (["--slots", "63"], "--slots is 63; it must be at least top-k, 64"),
            (["--slots", "100000"], "n_slots", "100000", "65535"),
            (["--slots", "many"], "n_slots", "many"),
            (["--context", "513"], "--context", "513", "512"),
            (["--context", "20"], "--max-tokens", "24", "1..19"),
            (["--max-tokens", "0"], "--max-tokens", "'0'", "1.."),
            (["--max-tokens", "999999999999"], "--max-tokens", "999999999999", "4194304"),
            (["--threads", "0"], "--threads", "'0'", "1..1024"),
            (["--temperature", "nan"], "--temperature", "nan", "0..100"),
            (["--temperature", "-1"], "--temperature", "-1", "0..100"),
            (["--policy", "best"], "policy", "best", "lru"),
            (["--backend", "abacus"], "there is no backend 'abacus'; there are cpu, ref"),
            (["--selector", "mine"], "--selector", "mine", "quest"),
            (["--metrics-file", "nowhere/metrics"], "--metrics-file", "nowhere/metrics", "No such file"),
            (["--metrics-file", "."], "--metrics-file", "directory"),
            (["--host-file", "nowhere/rows"], "--host-file", "nowhere/rows", "No such file"),
            (["--prompt-file", text_file("x")], "only one of --prompt and --prompt-file may be given"),
            (["surplus"], "surplus")):
        refused(*usual(), *extra, says=says)
    refused("--model", plain_model(), says=["one of --prompt and --prompt-file is needed"])
    refused("--prompt", "x", says=["--model"])
    refused(*usual(), env=dict(os.environ, HISPARSE_BACKEND="abacus"), says=["there is no backend 'abacus'"])
    refused(*usual(), env=dict(os.environ, HISPARSE_N_SLOT="5"), says=["HISPARSE_N_SLOT", "n_slots"])
    refused("--model", plain_model(), "--prompt-file", text_file(""), says=["empty"])
    refused(*usual(make("llama.gguf", "--vocab", "llama")), "--prompt", "", says=["empty"])
    assert run(*usual(), "--no-such", code=2)[1].startswith("hisparse run: ")


def host_files_are_not_overwritten():
    with open("precious", "w") as out:
        out.write("data")
    refused(*usual(), "--host-file", "precious", says=["--host-file", "precious", "File exists"])
    assert open("precious").read() == "data"


# Bad outputs and Ctrl-C

def full_disk():
    for extra in ([], ["--json"]):
        with open("/dev/full", "w") as full:
            _, err = run(*usual(), *extra, code=3, stdout=full)
            assert "No space left" in err or "cannot write" in err, err
    refused(*usual(), "--json", "--metrics-file", "/dev/full", code=3, says=["--metrics-file", "/dev/full", "No space left"])


def closed_pipe():
    for extra in ([], ["--json"]):
        reader, writer = os.pipe()
        os.close(reader)
        _, err = run(*usual(), *extra, code=3, stdout=writer)
        os.close(writer)
        assert "Broken pipe" in err or "cannot write" in err, err


def wait_for(condition):
    end = time.time() + LIMIT_SECONDS
    while not condition():
        assert time.time() < end, "nothing happened"
        time.sleep(0.01)


def lines_of(path):
    return open(path).read().count("\n") if os.path.exists(path) else -1


def interrupted(metrics, lines, *args):
    """Output of a run that gets Ctrl-C once its metrics file has that many lines; the file is made before prefill."""
    process = start(*args, "--threads", "1", "--metrics-file", metrics)
    wait_for(lambda: lines_of(metrics) >= lines or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    assert code == 130, f"exit code {code}: {err!r}"
    return out


def endless(*extra):
    model = make("long.gguf", "--layers", "3", "--context", "60000")
    return ["--model", model, "--prompt", TEXT, "--top-k", "64", "--slots", "64", "--max-tokens", "50000", "--ignore-eos",
            *extra]


def ctrl_c_in_decode():
    out = interrupted("m1", 3, *endless("--verify"))
    tokens = int(re.search(rb"stopped by Ctrl-C after (\d+) tokens", out).group(1))
    assert 3 <= tokens < 50000 and lines_of("m1") == tokens and b"\nverified: " in out, out
    r = json.loads(interrupted("m2", 3, *endless("--json")))
    assert r["stopped"] and 3 <= r["generated_tokens"] < 50000 and r["text"] and r["hits"] > 0, r
    assert lines_of("m2") == r["generated_tokens"]


def ctrl_c_in_prefill():
    prompt = text_file(TEXT * 1500)
    args = [*endless()[:2], "--prompt-file", prompt, *DECODE]
    assert b"\nstopped by Ctrl-C after 0 tokens\n" in interrupted("m3", 0, *args)
    r = json.loads(interrupted("m4", 0, *args, "--json"))
    assert r["stopped"] and r["generated_tokens"] == r["hits"] == 0 and r["verify"] is None, r
    assert r["text"] == "" and lines_of("m4") == 0, r


def ctrl_c_before_the_first_step_measures_nothing():
    """Nothing was verified and nothing timed: neither form may say a number."""
    prompt = text_file(TEXT * 1500)
    args = [*endless()[:2], "--prompt-file", prompt, *DECODE, "--verify"]
    out = interrupted("m5", 0, *args)
    assert b"\nnot verified: stopped before the first step\nstopped by Ctrl-C after 0 tokens\n" in out, out
    for never in (b"\nverified", b"tokens/s", b"hit", b"swap-in", b"fetched", b"nan"):
        assert never not in out, out
    r = json.loads(interrupted("m6", 0, *args, "--json"))
    assert r["verify"] == {"identical": None, "steps": 0}, r
    for name in ("prefill_tokens_per_second", "decode_tokens_per_second", "resident_tokens_per_second",
                 "swap_in_share_selecting", "swap_in_share_dense"):
        assert r[name] is None, (name, r)


TESTS = [every_type_is_verified, json_has_every_field, text_is_the_same_everywhere, draws_follow_their_seed,
         short_prompts_and_wide_selections, reading_is_announced, metrics_sum_up, metrics_for_prometheus, promtool_finds_nothing, long_prompts_are_cut, missing_and_wrong_files,
         truncated_models, hostile_bytes, wrong_metadata, bad_options, host_files_are_not_overwritten, full_disk,
         closed_pipe, ctrl_c_in_decode, ctrl_c_in_prefill, ctrl_c_before_the_first_step_measures_nothing]


def main(tests):
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for number, test in enumerate(tests, 1):
            begun = time.time()
            try:
                test()
                print(f"ok {number} - {test.__name__}")
            except Skip as reason:
                print(f"ok {number} - {test.__name__} # SKIP {reason}")
            except Exception as error:  # a test must not keep the others from running
                failed += 1
                print(f"not ok {number} - {test.__name__}\n# {type(error).__name__}: {str(error)[:2000]}")
            print(f"# {time.time() - begun:.1f} s", flush=True)
        os.chdir("/")
    print(f"1..{len(tests)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(TESTS))
