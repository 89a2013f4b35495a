#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turn a dump of SGLang's top-k locality recorder into an array that `hisparse trace import` reads.

usage: sglang_to_npz.py DUMP.pt OUT.npz        needs torch (to read the dump) and numpy

The dump is a dict whose "records" have layer_id, session_id, forward_mode, seq_len, positions [n] and topk_indices [n, k].
Decode steps are records of one query whose forward_mode, where it is a text, names decoding; prompts are left out. Each
session becomes a request of the trace, its steps in the order of their positions; a layer that a step does not have
selects nothing. Layers are numbered by their place among those recorded: the numbers are printed, for --layers.
"""
import sys


def is_decode(record):
    mode = record.get("forward_mode")
    return len(record["positions"]) == 1 and (not isinstance(mode, str) or "decode" in mode.lower())


def convert(records):
    """Arrays selections int32 [steps, layers, requests, k] and lengths int32 [steps, requests], and the layers' numbers."""
    import numpy as np
    steps = [(r["session_id"], int(r["positions"][0]), int(r["layer_id"]), np.asarray(r["topk_indices"]).reshape(-1))
             for r in records if is_decode(r)]
    if not steps:
        sys.exit("sglang_to_npz: no record of one query that decodes")
    layers, sessions = sorted({s[2] for s in steps}), sorted({s[0] for s in steps}, key=str)
    positions = {session: sorted({s[1] for s in steps if s[0] == session}) for session in sessions}
    k = max(len(s[3]) for s in steps)
    n_steps = max(len(p) for p in positions.values())
    selections = np.full((n_steps, len(layers), len(sessions), k), -1, np.int32)
    lengths = np.zeros((n_steps, len(sessions)), np.int32)
    place = {(session, position): i for session in sessions for i, position in enumerate(positions[session])}
    for session, position, layer, tokens in steps:
        step, request = place[session, position], sessions.index(session)
        if ((tokens < -1) | (tokens > position)).any():
            sys.exit(f"sglang_to_npz: layer {layer}, session {session}, position {position}: a token is not in -1 .. {position}")
        selections[step, layers.index(layer), request, :len(tokens)] = tokens
        lengths[step, request] = position + 1
    return selections, lengths, layers


def main(arguments):
    if len(arguments) != 2:
        sys.exit(__doc__)
    import numpy as np
    import torch
    dump = torch.load(arguments[0], map_location="cpu", weights_only=True)
    selections, lengths, layers = convert(dump["records"])
    np.savez(arguments[1], selections=selections, lengths=lengths)
    print("%d steps, %d requests, k %d; --layers %s" % (selections.shape[0], selections.shape[2], selections.shape[3],
                                                       ",".join(map(str, layers))))


if __name__ == "__main__":
    main(sys.argv[1:])
