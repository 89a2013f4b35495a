# SPDX-License-Identifier: Apache-2.0
"""`hisparse plan`: published figures, published ratios, refusals, and files that lie."""
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
GLM = ("plan", "--model", "glm-5.3", "--machine", "h200", "--gpus", "8", "--tp", "8", "--kv-format", "fp8", "--slots", "4096")


def test_published_figures(cli):
    cli.golden("plan_glm_5_3", *GLM, "--context", "131072", "--csv")
    for context, resident, slots in ((32768, 12, 56), (131072, 3, 30), (1048576, 0, 5)):
        rows = cli.run(*GLM, "--context", str(context), "--json").json()["rows"]
        cli.same([r["requests"] for r in rows], [resident, slots], f"requests of {context} tokens")
        cli.same((rows[0]["block_bytes"], rows[1]["host_block_bytes"], rows[1]["index_block_bytes"]),
                 (3052800, 2875392, 177408), "bytes per 64 tokens")


def test_published_ratios(cli):
    sys.path.insert(0, str(ROOT / "bench"))
    from plan_table import rows
    claimed = [(what, off) for what, _, _, off, _, claimed, _ in rows(cli.command) if claimed]
    cli.same(len(claimed), 8, "ratios claimed")
    cli.same([c for c in claimed if abs(c[1]) > 20], [], "ratios off by more than 20%")


def test_text(cli):
    r = cli.run(*GLM, "--explain")
    cli.same((r.code, r.err), (0, ""), "exit code and errors")
    text = "\n".join(r.out.splitlines()[2:]) + "\n"  # the first two lines have machine and date
    path = ROOT / "tests/golden/cli/plan_text.txt"
    if cli.update:
        path.write_text(text)
    cli.same(text, path.read_text(), "text")


def test_no(cli):
    for words, why in ((("--requests", "2"), "Not worth it: 3 of these requests fit with everything on the GPU"),
                       (("--context", "4096"), "Not worth it: with 4096 slots only requests of 5377 tokens and more"),
                       (("--host-gb", "10"), "Not possible: not even one request fits; what limits is host memory")):
        r = cli.run(*GLM, *words)
        cli.same(r.code, 0, "exit code")
        assert why in r.out, r.out


def test_mix(cli):
    mix = cli.run(*GLM, "--context", "32768:1,131072:3", "--json").json()["rows"][1]
    one = [cli.run(*GLM, "--context", c, "--json").json()["rows"][1]["device_bytes"] for c in ("32768", "131072")]
    cli.same(mix["device_bytes"], round((one[0] + 3 * one[1]) / 4), "mean bytes")


def test_refusals(cli):
    for name, *words in (("no_model", "--machine", "h200"), ("unknown_model", "--model", "glm-9", "--machine", "h200"),
                         ("unknown_machine", "--model", "glm-5.3", "--machine", "h300"),
                         ("no_bandwidth", "--model", "glm-5.3", "--machine", "gh200-144gb"),
                         ("windows", "--model", "gemma-3", "--machine", "h200"),
                         ("no_room", "--model", "glm-5.3", "--machine", "h100"),
                         ("no_host", "--model", "minimax-m3", "--machine", "rtx-pro-6000")):
        cli.golden(f"plan_{name}", "plan", *words)
    for name, *words in (("format", "--kv-format", "fp4"), ("few_slots", "--slots", "1024"), ("tp", "--tp", "3"),
                         ("pools", "--pools", "heap"), ("two_forms", "--json", "--csv"), ("contexts", "--context", "4096:0.5,"),
                         ("share", "--context", "4096:0"), ("no_context", "--context", "0"), ("output", "--output", "131072"),
                         ("miss_rate", "--miss-rate", "101"), ("no_folder", "--presets", "/nonexistent"),
                         ("no_profile", "--profile", "/nonexistent")):
        cli.golden(f"plan_bad_{name}", *GLM, *words)


def refused(cli, text, why, *option):
    path = cli.folder / "config.json"
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    words = ("plan", "--model", "glm-5.3", "--machine", "h200", *option, str(path)) if option else \
            ("plan", "--model", str(path), "--machine", "h200")
    r = cli.run(*words)
    cli.same((r.code, r.out), (2, ""), f"exit code and output of {text!r:.60}")
    assert why in r.err, r.err


def test_configs_that_lie(cli):
    good = {"model_type": "glm_moe_dsa", "num_hidden_layers": 78, "first_k_dense_replace": 3, "hidden_size": 6144, "vocab_size": 154880,
            "num_attention_heads": 64, "num_key_value_heads": 64, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
            "q_lora_rank": 2048, "kv_lora_rank": 512, "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048, "index_topk_freq": 4,
            "index_skip_topk_offset": 3, "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
            "n_shared_experts": 1, "intermediate_size": 12288}
    path = cli.folder / "config.json"
    path.write_text(json.dumps(good))
    rows = cli.run("plan", "--model", str(path), "--machine", "h200", "--slots", "4096", "--json").json()["rows"]
    cli.same((rows[0]["block_bytes"], rows[1]["host_block_bytes"]), (3052800, 2875392), "bytes per 64 tokens")
    refused(cli, {**good, "model_type": "llama"}, "model_type is 'llama'; it may be deepseek_v3")
    refused(cli, {}, "model_type is 'missing'")
    refused(cli, {**good, "num_hidden_layers": 1e12}, "num_hidden_layers is 1000000000000; it may be 1..4096")
    refused(cli, {**good, "num_hidden_layers": 1.5}, "num_hidden_layers is 1.5")
    refused(cli, {**good, "hidden_size": -1}, "hidden_size is -1")
    refused(cli, {**good, "index_topk": 0}, "index_topk is missing")
    refused(cli, {**good, "index_skip_topk_offset": 99}, "index_skip_topk_offset is 99; it may be 0..78")
    refused(cli, {**good, "index_topk_freq": 1e300}, "index_topk_freq is 1e+300")
    refused(cli, {**good, "first_k_dense_replace": 79}, "layers with a dense FFN of all layers: 79 of 78")
    refused(cli, {**good, "num_experts_per_tok": 512}, "experts of a token of all experts: 512 of 256")
    refused(cli, "[1, 2]", "holds no JSON object")
    refused(cli, "{\"model_type\": ", "line 1: ")
    refused(cli, "[" * 100000, "maximum parsing depth reached")
    refused(cli, " " * (5 << 20), "no regular file of at most 4 MiB")


def test_profiles(cli):
    cells = [{"what": "reach", "row_bytes": 656, "span_mib": s, "swept_gb_s": r} for s, r in ((64, 45), (16384, 6.56), (1024, 44))]
    path = cli.folder / "profile.json"
    path.write_text(json.dumps({"format": 1, "measured": {"kernel_to_device_gb_s": 10, "rows": cells}}))
    r = cli.run(*GLM, "--profile", str(path), "--explain")
    assert "link: 10.0 rows/us, at most 10.0 GB/s, from the profile" in r.out, r.out
    refused(cli, {"measured": {"rows": []}}, "is it a profile of hisparse calibrate?", "--profile")
    refused(cli, {"measured": {"kernel_to_device_gb_s": 10, "rows": 7}}, "is it a profile", "--profile")


def test_presets_that_lie(cli):
    entry = json.loads((ROOT / "presets/models.json").read_text())["models"][3]
    for change, why in (({"architecture": {}}, "architecture.layers is 0"), ({"kv": {}}, "lacks row bytes"),
                        ({"kv": {"row_bytes_per_layer_bf16": 1e12}}, "at most 1048576"),
                        ({"indexer": {**entry["indexer"], "indexer_layer_count": 4096}}, "4153 of 78"),
                        ({"id": None}, "there is no model")):
        (cli.folder / "models.json").write_text(json.dumps({"models": [{**entry, **change}]}))
        r = cli.run("plan", "--model", "glm-5.3", "--machine", "h200", "--presets", str(cli.folder))
        cli.same((r.code, r.out), (2, ""), "exit code and output")
        assert why in r.err, r.err
