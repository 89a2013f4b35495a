# SPDX-License-Identifier: Apache-2.0
"""`hisparse trace`: arrays become traces, traces are shown and cut, and hostile files are refused."""
import struct

from traces import drifting, imported, npy, npz, read


def refused(cli, *words, says, code=2):
    r = cli.run("trace", *words)
    cli.same((r.code, r.out), (code, ""), f"exit code and output of {words}")
    for text in says:
        assert text in r.err, f"{text!r} is not in {r.err!r}"


def test_misuse(cli):
    cli.golden("no_action", "trace")
    cli.golden("misspelt_action", "trace", "inport")
    cli.golden("trace_no_file", "trace", "info")
    cli.golden("trace_three_files", "trace", "import", "a.npy", "b", "c")
    cli.golden("trace_missing_file", "trace", "info", "nowhere.safetensors")


def test_help_of_actions(cli):
    cli.golden("help_trace", "trace", "--help")
    for action in ("import", "info", "cut"):
        cli.golden(f"help_trace_{action}", "trace", action, "--help")


def test_import(cli):
    numbers = drifting(20, 3, 8, 100)
    path = imported(cli, "plain", numbers, (20, 3, 8), "--model", "m", "--layers", "0,1,7", "--row-bytes", "656")
    metadata, tensors = read(path)
    cli.same(tensors["selections"], ([20, 3, 1, 8], numbers), "selections")
    first = max(max(numbers[s * 24:s * 24 + 24]) + 1 - s for s in range(20))
    cli.same(tensors["lengths"], ([20, 1], [first + s for s in range(20)]), "lengths")
    for key, value in dict(hisparse_trace="1", steps="20", k="8", model="m", layers="0,1,7", row_bytes="656").items():
        cli.same(metadata[key], value, key)


def test_import_of_every_shape(cli):
    for shape in ((6, 4), (6, 1, 4), (2, 3, 4), (1, 2, 3, 4)):
        _, tensors = read(imported(cli, "shapes", list(range(24)), shape, "--context", "50"))
        whole = [shape[0], shape[1] if len(shape) > 2 else 1, shape[2] if len(shape) > 3 else 1, 4]
        cli.same(tensors["selections"], (whole, list(range(24))), str(shape))
        cli.same(tensors["lengths"][1], [50 + s for s in range(shape[0]) for _ in range(whole[2])], str(shape))


def test_import_of_archives(cli):
    numbers = [0, 1, -1, 3, 4, 5, 6, 7, 0, 1, 2, 3]
    for n, arrays in enumerate((dict(selections=npy(numbers, (3, 1, 4))), dict(arr_0=npy(numbers, (3, 1, 4), "i8", version=2)),
                                dict(selections=npy(numbers, (3, 1, 1, 4)), lengths=npy([9, 10, 10], (3, 1), "i8")))):
        for compressed in (False, True):
            npz(cli.folder / "a.npz", compressed, **arrays)
            name = f"archive{n}{compressed}.safetensors"
            cli.same(cli.run("trace", "import", "a.npz", name).code, 0, "exit code")
            _, tensors = read(cli.folder / name)
            cli.same(tensors["selections"][1], numbers, "selections")
            cli.same(tensors["lengths"][1], [9, 10, 10] if "lengths" in arrays else [7, 8, 9], "lengths")


def test_arrays_that_cannot_be(cli):
    def bad(data, *says):
        (cli.folder / "bad.npy").write_bytes(data)
        refused(cli, "import", "bad.npy", "bad.safetensors", says=["bad.npy", *says])
        assert not (cli.folder / "bad.safetensors").exists()

    good = npy(list(range(24)), (2, 3, 4))
    for n in (0, 5, 9, 30, len(good) - 96, len(good) - 1):
        bad(good[:n], "offset ", "the file ends before the array does")
    bad(b"PK\3\4" + good, "offset 10: not an array of numpy")
    bad(good.replace(b"<i4", b"<f4"), "must be int32 or int64")
    bad(good.replace(b"<i4", b">i4"), "must be int32 or int64")
    bad(npy(list(range(24)), (2, 3, 4), order="True"), "C order")
    bad(npy([1], ()), "single number")
    bad(npy([1], (1,)), "1 dimension")
    bad(npy([1], (1, 1, 1, 1, 1)), "1 to 4 dimensions")
    bad(npy([1], (1, 0)), "1 to 4 dimensions")
    bad(npy([1], (1, 99999999999)), "1 to 4 dimensions")
    bad(npy([1], (1, 65536)), "k 65536")
    bad(npy([1], (1, 65535, 65535, 65535)), "more than 268435456 entries")
    bad(npy([1], (1, 65535, 4096)), "ends before the array does")
    bad(b"\x93NUMPY\2\0\xff\xff\xff\xff" + good, "a header of more than 4096 bytes")
    bad(npy([0, 1, 2, -2], (2, 2)), "step 1, layer 0, request 0, entry 1 is -2; tokens are 0 to")
    bad(npy([0, 1, 2, 4194304], (2, 2)), "entry 1 is 4194304; tokens are 0 to 4194303")
    bad(npy([0, 1, 2, 2 ** 40], (2, 2), "i8"), "does not fit 32 bits")


def test_archives_that_cannot_be(cli):
    def bad(*says):
        refused(cli, "import", "bad.npz", "bad.safetensors", says=["bad.npz", *says])

    (cli.folder / "bad.npz").write_bytes(b"not an archive")
    bad("no .npz file")
    npz(cli.folder / "bad.npz", other=npy([1], (1, 1)))
    bad("neither 'selections' nor 'arr_0'")
    npz(cli.folder / "bad.npz", selections=npy([1, 2], (2, 1)), lengths=npy([1], (1, 1)))
    bad("lengths must be [2, 1]")
    npz(cli.folder / "bad.npz", selections=npy([1, 2], (2, 1)), lengths=npy([9, 8], (2, 1)))
    bad("a length of 8 tokens after 9")
    npz(cli.folder / "bad.npz", selections=npy([1, 8], (2, 1)), lengths=npy([8, 8], (2, 1)))
    bad("entry 0 is 8; tokens are 0 to 7")
    npz(cli.folder / "bad.npz", True, selections=npy([1] * 4096, (4096, 1)))
    data = (cli.folder / "bad.npz").read_bytes()
    (cli.folder / "bad.npz").write_bytes(data[:60] + bytes([data[60] ^ 255]) + data[61:])
    bad("")


def test_bad_options(cli):
    (cli.folder / "two.npy").write_bytes(npy([0, 1, 5, 2], (2, 1, 2)))
    for options, says in ((["--layers", "0,1"], "layers is '0,1'"), (["--row-bytes", "x"], "row_bytes is 'x'"),
                          (["--context", "4"], "entry 0 is 5; tokens are 0 to 4"),
                          (["--context", "4194304"], "a request may have 4194304")):
        refused(cli, "import", "two.npy", "two.safetensors", *options, says=[says])
    imported(cli, "there", [0, 1], (2, 1))
    refused(cli, "import", "two.npy", "there.safetensors", says=["there.safetensors", "the path of a new file"])
    refused(cli, "import", "two.npy", "two.safetensors", "--text", b"\xff", says=["notes must be UTF-8"])
    refused(cli, "import", "two.npy", "no/such/folder", says=["no/such/folder"])


def test_info(cli):
    imported(cli, "info", [0, 1, 2, 1, 2, 3, 1, -1, 3, 7, 8, 9], (2, 2, 3), "--text", "words", "--layers", "4,5")
    r = cli.run("trace", "info", "info.safetensors")
    assert r.out.startswith("info.safetensors: 2 steps, 2 layers, 1 requests, k 3, 9 to 10 tokens\n"), r.out
    assert "\n  text       words\n" in r.out, r.out
    rows = cli.run("trace", "info", "info.safetensors", "--json").json()["rows"]
    cli.same(rows, [dict(layer=4, entries=6, none_percent=rows[0]["none_percent"], repeated_percent=50.0, distinct_tokens=4.0),
                    dict(layer=5, entries=6, none_percent=0.0, repeated_percent=0.0, distinct_tokens=6.0)], "rows")
    assert abs(rows[0]["none_percent"] - 100 / 6) < 0.001, rows


def test_cut(cli):
    numbers = drifting(10, 3, 4, 50)
    imported(cli, "whole", numbers, (10, 3, 4), "--layers", "1,2,30", "--licence", "CC0")
    words = ("cut", "whole.safetensors", "cut.safetensors")
    cli.same(cli.run("trace", *words, "--from", "2", "--steps", "5", "--first-layer", "1").code, 0, "exit code")
    metadata, tensors = read(cli.folder / "cut.safetensors")
    want = [n for s in range(2, 7) for n in numbers[s * 12 + 4:s * 12 + 12]]
    cli.same(tensors["selections"], ([5, 2, 1, 4], want), "selections")
    cli.same(tensors["lengths"][1], read(cli.folder / "whole.safetensors")[1]["lengths"][1][2:7], "lengths")
    cli.same((metadata["layers"], metadata["licence"], metadata["steps"]), ("2,30", "CC0", "5"), "notes")
    refused(cli, *words, says=["cut.safetensors", "new file"])
    refused(cli, *words[:2], "x", "--from", "10", says=["step 10 and the 0 that follow; the trace has 0 to 9"])
    refused(cli, *words[:2], "x", "--layers", "4", says=["layer 0 and the 3 that follow; the trace has 0 to 2"])
    refused(cli, *words[:2], "x", "--requests", "2", says=["request 0 and the 1 that follow"])


def test_cut_candidates(cli):
    cli.same(cli.run("trace", "synth", "ranked.safetensors", "--k", "8", "--next", "6", "--context", "99", "--steps", "3", "--layers", "2").code, 0, "synth")
    whole = read(cli.folder / "ranked.safetensors")[1]
    for n in (4, 0):
        cli.same(cli.run("trace", "cut", "ranked.safetensors", f"best{n}.safetensors", "--from", "1", "--next", str(n)).code, 0, "exit code")
        best = read(cli.folder / f"best{n}.safetensors")[1]
        for name in ("next_tokens", "next_scores") if n else ():
            cli.same(best[name], ([2, 2, 1, 4], [whole[name][1][12 + i * 6 + e] for i in range(4) for e in range(4)]), name)
    cli.same(sorted(best), ["lengths", "selections"], "tensors without candidates")
    refused(cli, "cut", "ranked.safetensors", "x", "--next", "7", says=["--next is 7; the trace has 6 candidates"])


def test_hostile_traces(cli):
    good = imported(cli, "good", list(range(24)), (2, 3, 4)).read_bytes()
    end = len(good)
    for n in (0, 7, 100, end - 105, end - 1):
        (cli.folder / "short.safetensors").write_bytes(good[:n])
        refused(cli, "info", "short.safetensors", says=["short.safetensors: ", "offset " if n else "empty"])
    spoilt = bytearray(good)
    spoilt[end - 8 - 96:end - 8 - 92] = struct.pack("<i", 2 ** 31 - 1)
    (cli.folder / "token.safetensors").write_bytes(spoilt)
    says = [f"token.safetensors: offset {end - 104}: token 2147483647 at step 0, layer 0, request 0"]
    refused(cli, "cut", "token.safetensors", "x.safetensors", says=says)
    r = cli.run("trace", "info", "token.safetensors")
    cli.same(r.code, 2, "exit code of info")
    assert says[0] in r.err and not (cli.folder / "x.safetensors").exists(), r.err
