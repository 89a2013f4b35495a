# SPDX-License-Identifier: Apache-2.0
"""Arrays as numpy saves them, and traces, made and read with the standard library alone."""
import json
import random
import struct
import zipfile


def npy(numbers, shape, kind="i4", order="False", version=1):
    text = "{'descr': '<%s', 'fortran_order': %s, 'shape': (%s), }" % (kind, order, "".join(f"{n}, " for n in shape))
    length = struct.pack("<H" if version == 1 else "<I", len(text) + 1)
    data = struct.pack("<%d%s" % (len(numbers), "i" if kind == "i4" else "q"), *numbers)
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode() + b"\n" + data


def npz(path, compressed=False, **arrays):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as out:
        for name, data in arrays.items():
            out.writestr(name + ".npy", data)


def drifting(steps, layers, k, tokens, seed=1, keep=0.8):
    """Selections as numbers [steps][layers][k]: each keeps a share of the one before and draws the rest."""
    rng, numbers = random.Random(seed), []
    now = [rng.sample(range(tokens), k) for _ in range(layers)]
    for _ in range(steps):
        for layer in range(layers):
            kept = [t for t in now[layer] if rng.random() < keep]
            fresh = rng.sample([t for t in range(tokens) if t not in kept], k - len(kept))
            now[layer] = kept + fresh
            numbers += now[layer]
    return numbers


def read(path):
    """Metadata and tensors {name: (shape, numbers)} of a trace."""
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    header, tensors = json.loads(data[8:8 + n]), {}
    metadata = header.pop("__metadata__")
    for name, t in header.items():
        first, end = t["data_offsets"]
        kind = "f" if t["dtype"] == "F32" else "i"
        tensors[name] = (t["shape"], list(struct.unpack("<%d%s" % ((end - first) // 4, kind), data[8 + n + first:8 + n + end])))
    return metadata, tensors


def imported(cli, name, numbers, shape, *options):
    """A trace made of an array; its path."""
    (cli.folder / f"{name}.npy").write_bytes(npy(numbers, shape))
    path = cli.folder / f"{name}.safetensors"
    path.unlink(missing_ok=True)
    r = cli.run("trace", "import", f"{name}.npy", path.name, *options)
    cli.same((r.code, r.err), (0, ""), "import")
    return path


def pattern(steps, layers, k, tokens):
    """Selections that need no random numbers: a window that moves, and tokens that come back after a while."""
    return [(s * 7 + e if e % 4 else s % (5 + l) * 977 + e * 31) % tokens for s in range(steps) for l in range(layers) for e in range(k)]
