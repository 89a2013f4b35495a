# SPDX-License-Identifier: Apache-2.0
"""Safetensors, bf16, as the engine reads it: 8 bytes little-endian length, JSON header, data. By hand: the format is
small, and the training machine has no need of a package for it."""
import json
import os
import struct

import torch


def save(model, path):
    """Write model to path; whoever reads path sees the old file or the new one."""
    header = {"__metadata__": {"format": "pt", "hisparse": json.dumps(model.shape)}}
    pieces, offset = [], 0
    for name, parameter in sorted(model.state_dict().items()):
        piece = parameter.detach().to("cpu", torch.bfloat16).contiguous().view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": "BF16", "shape": list(parameter.shape), "data_offsets": [offset, offset + len(piece)]}
        pieces.append(piece)
        offset += len(piece)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(f"{path}.part", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(pieces))
    os.replace(f"{path}.part", path)


def load(path, dtype=torch.float32):
    """The model of a file, with its bf16 weights in dtype."""
    from model import Decoder
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = bytearray(file.read())
    model = Decoder(json.loads(header.pop("__metadata__")["hisparse"]))
    tensors = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        tensors[name] = torch.frombuffer(data[start:end], dtype=torch.bfloat16).view(entry["shape"])
    model.load_state_dict(tensors)
    return model.to(dtype).requires_grad_(False)
