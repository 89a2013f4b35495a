# SPDX-License-Identifier: Apache-2.0
"""`tools/sglang_to_npz.py`: a dump of SGLang's recorder becomes a trace. A stand-in for torch reads the dump."""
import os
import pickle
import subprocess
import sys
from pathlib import Path

from harness import Skip
from traces import read

CONVERTER = Path(__file__).resolve().parent.parent.parent / "tools" / "sglang_to_npz.py"


def record(layer, session, position, tokens, mode="ForwardMode.DECODE"):
    return dict(layer_id=layer, session_id=session, forward_mode=mode, seq_len=position + 1, positions=[position], topk_indices=[tokens])


def convert(cli, records):
    try:
        import numpy  # noqa: F401
    except ImportError:
        raise Skip("numpy is missing")
    (cli.folder / "torch.py").write_text("import pickle\n\n\ndef load(path, map_location, weights_only):\n    return pickle.load(open(path, 'rb'))\n")
    with open(cli.folder / "dump.pt", "wb") as out:
        pickle.dump({"records": records}, out)
    return subprocess.run([sys.executable, str(CONVERTER), "dump.pt", "dump.npz"], cwd=cli.folder, text=True, capture_output=True,
                          env=dict(os.environ, PYTHONPATH=str(cli.folder)))


def test_a_dump_becomes_a_trace(cli):
    prompt = dict(layer_id=3, session_id="a", forward_mode="ForwardMode.EXTEND", seq_len=2, positions=[0, 1], topk_indices=[[0, -1], [0, 1]])
    done = convert(cli, [prompt, record(3, "a", 10, [0, 10]), record(7, "a", 10, [4, 5]), record(3, "b", 20, [19, -1], 2),
                         record(7, "a", 11, [1, 11]), record(3, "a", 11, [2, 3]), record(7, "b", 20, [6, 7], 2)])
    cli.same((done.returncode, done.stdout, done.stderr), (0, "2 steps, 2 requests, k 2; --layers 3,7\n", ""))
    r = cli.run("trace", "import", "dump.npz", "dump.safetensors", "--layers", "3,7")
    cli.same((r.code, r.err), (0, ""), "import")
    _, tensors = read(cli.folder / "dump.safetensors")
    cli.same(tensors["selections"], ([2, 2, 2, 2], [0, 10, 19, -1, 4, 5, 6, 7, 2, 3, -1, -1, 1, 11, -1, -1]), "selections")
    cli.same(tensors["lengths"], ([2, 2], [11, 21, 12, 0]), "lengths")


def test_dumps_that_cannot_be(cli):
    for records, says in (([], "no record of one query"), ([record(0, "a", 5, [6])], "position 5: a token is not in -1 .. 5"),
                          ([record(0, "a", 5, [-2])], "a token is not in")):
        done = convert(cli, records)
        assert done.returncode == 1 and says in done.stderr, done.stderr
