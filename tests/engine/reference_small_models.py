#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The small models in plain numpy: float64, one token at a time, as slow and as plain as can be.

  reference_small_models.py MODEL.safetensors PROMPT N            decode N bytes greedily after the file PROMPT; a JSON line
                                                                  a position, from the prompt's last byte on: position, the
                                                                  byte with the greatest logit, all logits
  reference_small_models.py --random-tiny ARCHITECTURE SEED FILE  write a model with random weights and a small shape

Numbers that a cache keeps are rounded to what it keeps them in (bf16; DSA's index keys and queries as index_dtype says);
all else is float64. Compressed rows of NSA are made from keys and values as projected, and kept as bf16. Selections are
those of hisparse_ops.h, but scores are float64: where two scores are nearly alike, float32 may choose the other."""
import json
import struct
import sys

import numpy as np

COMMON = {"n_layers": 3, "embedding": 32, "ffn": 48, "vocab": 256, "context": 512, "norm_epsilon": 1e-5, "rope_theta": 10000.0,
          "n_heads": 4}
GQA = {"n_kv_heads": 2, "head_dim": 16}
TINY = {
    "gqa_quest": COMMON | GQA | {"dense_layers": 1, "page_tokens": 4, "top_k": 16},
    "gqa_nsa": COMMON | GQA | {"compress_tokens": 8, "compress_stride": 4, "block_tokens": 8, "n_blocks": 4, "n_first": 1,
                               "n_local": 2, "window": 12},
    "mla_dsa": COMMON | {"latent_dim": 24, "rope_dim": 8, "nope_dim": 12, "value_dim": 10, "index_heads": 4, "index_dim": 16,
                         "index_rope_dim": 8, "index_dtype": "e4m3", "top_k": 16},
}


# ------------------------------------------------------------------------------------------------------------- files --
def to_bf16_bits(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16_bits(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def bf16(x):
    return from_bf16_bits(to_bf16_bits(x))


def read_model(path):
    """Shape, and tensors as float64 by name."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    shape = json.loads(header.pop("__metadata__")["hisparse"])
    tensors = {}
    for name, entry in header.items():
        assert entry["dtype"] == "BF16", name
        start, end = entry["data_offsets"]
        tensors[name] = from_bf16_bits(np.frombuffer(data[start:end], np.uint16)).reshape(entry["shape"])
    return shape, tensors


def write_model(path, shape, tensors):
    header, pieces, offset = {"__metadata__": {"format": "pt", "hisparse": json.dumps(shape)}}, [], 0
    for name, values in tensors.items():
        piece = to_bf16_bits(values).tobytes()
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [offset, offset + len(piece)]}
        pieces.append(piece)
        offset += len(piece)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(pieces))


def tensor_shapes(shape):
    """Every tensor's shape by name."""
    e, f, h = shape["embedding"], shape["ffn"], shape["n_heads"]
    layer = {"attention_norm": (e,), "ffn_norm": (e,), "gate": (f, e), "up": (f, e), "down": (e, f)}
    if shape["architecture"].startswith("gqa"):
        g, d = shape["n_kv_heads"], shape["head_dim"]
        layer |= {"query": (h * d, e), "key": (g * d, e), "value": (g * d, e), "attention_output": (e, h * d)}
        if shape["architecture"] == "gqa_nsa":
            layer |= {f"compress_{what}_mix": (g, shape["compress_tokens"], d) for what in ("key", "value")}
            layer |= {f"compress_{what}_projection": (g, d, d) for what in ("key", "value")}
            layer |= {"branch_gate": (h * 3, e)}
    else:
        nope, rope, value, latent = (shape[name] for name in ("nope_dim", "rope_dim", "value_dim", "latent_dim"))
        hi, di = shape["index_heads"], shape["index_dim"]
        layer |= {"query": (h * (nope + rope), e), "latent": (latent, e), "latent_norm": (latent,), "rope_key": (rope, e),
                  "key_up": (h, nope, latent), "value_up": (h, value, latent), "attention_output": (e, h * value),
                  "index_query": (hi * di, e), "index_key": (di, e), "index_key_norm_weight": (di,),
                  "index_key_norm_bias": (di,), "index_weight": (hi, e)}
    shapes = {"embedding": (shape["vocab"], e), "norm": (e,), "output": (shape["vocab"], e)}
    return shapes | {f"layers.{n}.{name}": size for n in range(shape["n_layers"]) for name, size in layer.items()}


def random_tiny(path, architecture, seed, **changes):
    """Write a model with random weights; changes replace parts of the tiny shape. Weights are large enough that attention
    is far from even and selections matter."""
    shape = {"architecture": architecture} | TINY[architecture] | changes
    rng, tensors = np.random.default_rng(seed), {}
    for name, size in tensor_shapes(shape).items():
        values = rng.standard_normal(size) * 1.5 / (1 if len(size) == 1 else np.sqrt(size[-1]))
        tensors[name] = 1 + 0.2 * values if name.endswith(("norm", "norm_weight")) else values
    write_model(path, shape, tensors)
    return shape


# -------------------------------------------------------------------------------------------------------- arithmetic --
def rms_norm(x, weight, epsilon):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + epsilon) * weight


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    weights = np.exp(x - x.max())
    return weights / weights.sum()


def rope_pairs(x, position, theta):
    d = x.shape[-1]
    out = np.array(x)
    for i in range(d // 2):
        angle = position * theta ** (-2 * i / d)
        a, b = x[..., 2 * i], x[..., 2 * i + 1]
        out[..., 2 * i] = a * np.cos(angle) - b * np.sin(angle)
        out[..., 2 * i + 1] = a * np.sin(angle) + b * np.cos(angle)
    return out


def rope_halves(x, position, theta, r):
    out = np.array(x)
    for i in range(r // 2):
        angle = position * theta ** (-2 * i / r)
        a, b = x[..., i], x[..., i + r // 2]
        out[..., i] = a * np.cos(angle) - b * np.sin(angle)
        out[..., i + r // 2] = a * np.sin(angle) + b * np.cos(angle)
    return out


def hadamard(x):
    d = x.shape[-1]
    signs = np.array([[(-1) ** bin(i & c).count("1") for c in range(d)] for i in range(d)])
    return x @ signs.T / np.sqrt(d)


def e4m3(x):
    """Round each vector to e4m3 with its power-of-two scale."""
    out = np.empty_like(x)
    for at in np.ndindex(x.shape[:-1]):
        scale, most = 2.0**-30, max(np.abs(x[at]).max(), 1e-4)
        while most / scale > 448:
            scale *= 2
        for i, value in enumerate(x[at] / scale):
            exponent = max(np.floor(np.log2(abs(value))) if value else -6, -6)
            step = 2.0 ** (exponent - 3)
            out[at + (i,)] = np.rint(value / step) * step * scale  # rint: ties to even
    return out


def top(scores, k):
    """Indices of the k greatest, ties to the lower index, ascending."""
    return sorted(np.argsort(-np.asarray(scores), kind="stable")[:k].tolist())


def attend(query, keys, values, scale):
    """One head over the rows given."""
    return softmax(np.array([scale * (query @ key) for key in keys])) @ np.array(values)


# ------------------------------------------------------------------------------------------------------------ layers --
class GqaLayer:
    def __init__(self, shape, w, index):
        self.s, self.w, self.index = shape, w, index
        self.keys, self.values = [], []                  # as cached: bf16, keys after rope, [KV heads][channels]
        self.selections = []                             # of every token, for whoever wants to look

    def project(self, x):
        s = self.s
        return ((self.w["query"] @ x).reshape(s["n_heads"], -1), (self.w["key"] @ x).reshape(s["n_kv_heads"], -1),
                (self.w["value"] @ x).reshape(s["n_kv_heads"], -1))

    def append(self, k, v, position):
        self.keys.append(bf16(rope_pairs(k, position, self.s["rope_theta"])))
        self.values.append(bf16(v))

    def over(self, q, chosen):
        """Every head over the tokens chosen for its KV head."""
        group = self.s["n_heads"] // self.s["n_kv_heads"]
        return np.array([attend(q[h], [self.keys[t][h // group] for t in chosen[h // group]],
                                [self.values[t][h // group] for t in chosen[h // group]], self.s["head_dim"] ** -0.5)
                         for h in range(self.s["n_heads"])])


class QuestLayer(GqaLayer):
    def select(self, q, n):
        s = self.s
        page, n_pages = s["page_tokens"], -(-n // s["page_tokens"])
        mean = q.reshape(s["n_kv_heads"], -1, s["head_dim"]).mean(1)
        scores = []
        for p in range(n_pages):
            keys = np.array(self.keys[p * page : (p + 1) * page])
            scores.append(np.maximum(mean * keys.min(0), mean * keys.max(0)).sum())
        scores[-1] = np.inf
        return [t for p in top(scores, s["top_k"] // page) for t in range(p * page, min((p + 1) * page, n))]

    def step(self, x, position):
        q, k, v = self.project(x)
        self.append(k, v, position)
        q, n = rope_pairs(q, position, self.s["rope_theta"]), position + 1
        chosen = list(range(n)) if self.index < self.s["dense_layers"] else self.select(q, n)
        self.selections.append(chosen)
        return self.over(q, [chosen] * self.s["n_kv_heads"]).reshape(-1)


class NsaLayer(GqaLayer):
    def __init__(self, shape, w, index):
        super().__init__(shape, w, index)
        self.plain = {"key": [], "value": []}            # before rope, for compression
        self.compressed = {"key": [], "value": []}       # bf16 [KV heads][channels]

    def compress(self, what):
        mix, projection = self.w[f"compress_{what}_mix"], self.w[f"compress_{what}_projection"]
        span = np.array(self.plain[what][-self.s["compress_tokens"] :])  # [tokens][KV heads][channels]
        rows = [projection[g] @ (mix[g] * span[:, g]).sum(0) for g in range(self.s["n_kv_heads"])]
        self.compressed[what].append(bf16(np.array(rows)))

    def row_scores(self, q, h):
        g = h * self.s["n_kv_heads"] // self.s["n_heads"]
        return softmax(np.array([row[g] @ q[h] for row in self.compressed["key"]]) * self.s["head_dim"] ** -0.5)

    def select(self, q, n, g):
        s, group = self.s, self.s["n_heads"] // self.s["n_kv_heads"]
        stride, block, span = s["compress_stride"], s["block_tokens"], s["compress_tokens"]
        n_blocks = -(-n // block)
        importance = np.zeros(n_blocks)
        if self.compressed["key"]:
            sums = sum(self.row_scores(q, h) for h in range(g * group, (g + 1) * group))
            for b in range(n_blocks):
                for piece in range(b * block // stride, (b + 1) * block // stride):
                    for row in range(len(sums)):
                        if row * stride <= piece * stride < row * stride + span:
                            importance[b] += sums[row]
        importance[: s["n_first"]] = np.inf
        importance[max(0, n_blocks - s["n_local"]) :] = np.inf
        return [t for b in top(importance, s["n_blocks"]) for t in range(b * block, min((b + 1) * block, n))]

    def step(self, x, position):
        s, n = self.s, position + 1
        plain, k, v = self.project(x)
        self.append(k, v, position)
        self.plain["key"].append(k)
        self.plain["value"].append(v)
        if n >= s["compress_tokens"] and (n - s["compress_tokens"]) % s["compress_stride"] == 0:
            self.compress("key")
            self.compress("value")
        q = rope_pairs(plain, position, s["rope_theta"])
        chosen = [self.select(plain, n, g) for g in range(s["n_kv_heads"])]
        self.selections.append(chosen)
        window = self.over(q, [list(range(max(0, n - s["window"]), n))] * s["n_kv_heads"])
        compressed = np.zeros_like(window)
        if self.compressed["key"]:
            for h in range(s["n_heads"]):
                values = np.array([row[h * s["n_kv_heads"] // s["n_heads"]] for row in self.compressed["value"]])
                compressed[h] = self.row_scores(plain, h) @ values
        gates = sigmoid(self.w["branch_gate"] @ x).reshape(s["n_heads"], 3)
        return (gates[:, :1] * compressed + gates[:, 1:2] * self.over(q, chosen) + gates[:, 2:] * window).reshape(-1)


class DsaLayer:
    def __init__(self, shape, w, index):
        self.s, self.w, self.index = shape, w, index
        self.rows, self.index_keys, self.selections = [], [], []

    def pack(self, x):
        return e4m3(x) if self.s["index_dtype"] == "e4m3" else bf16(x)

    def index_key(self, x, position):
        k = self.w["index_key"] @ x
        k = (k - k.mean()) / np.sqrt(k.var() + 1e-6) * self.w["index_key_norm_weight"] + self.w["index_key_norm_bias"]
        return self.pack(hadamard(rope_halves(k, position, self.s["rope_theta"], self.s["index_rope_dim"])))

    def select(self, x, position):
        s = self.s
        q = (self.w["index_query"] @ x).reshape(s["index_heads"], s["index_dim"])
        q = self.pack(hadamard(rope_halves(q, position, s["rope_theta"], s["index_rope_dim"])))
        weights = self.w["index_weight"] @ x * (s["index_heads"] * s["index_dim"]) ** -0.5
        return top([weights @ np.maximum(q @ key, 0) for key in self.index_keys], s["top_k"])

    def step(self, x, position):
        s, w = self.s, self.w
        c = rms_norm(w["latent"] @ x, w["latent_norm"], s["norm_epsilon"])
        self.rows.append(bf16(np.concatenate([c, rope_pairs(w["rope_key"] @ x, position, s["rope_theta"])])))
        self.index_keys.append(self.index_key(x, position))
        chosen = self.select(x, position)
        self.selections.append(chosen)
        q = (w["query"] @ x).reshape(s["n_heads"], -1)
        rows, out = np.array([self.rows[t] for t in chosen]), []
        for h in range(s["n_heads"]):
            rope = rope_pairs(q[h, s["nope_dim"] :], position, s["rope_theta"])
            absorbed = np.concatenate([q[h, : s["nope_dim"]] @ w["key_up"][h], rope])
            weights = softmax(rows @ absorbed * (s["nope_dim"] + s["rope_dim"]) ** -0.5)
            out.append(w["value_up"][h] @ (weights @ rows[:, : s["latent_dim"]]))
        return np.concatenate(out)


class Model:
    def __init__(self, path):
        self.s, self.w = read_model(path)
        kind = {"gqa_quest": QuestLayer, "gqa_nsa": NsaLayer, "mla_dsa": DsaLayer}[self.s["architecture"]]
        of = lambda n: {name.split(".", 2)[2]: value for name, value in self.w.items() if name.startswith(f"layers.{n}.")}
        self.layers = [kind(self.s, of(n), n) for n in range(self.s["n_layers"])]
        self.position = 0

    def step(self, token):
        """Logits after one more token."""
        x, epsilon = self.w["embedding"][token], self.s["norm_epsilon"]
        for layer in self.layers:
            w = layer.w
            x = x + w["attention_output"] @ layer.step(rms_norm(x, w["attention_norm"], epsilon), self.position)
            y = rms_norm(x, w["ffn_norm"], epsilon)
            gate = w["gate"] @ y
            x = x + w["down"] @ (gate * sigmoid(gate) * (w["up"] @ y))
        self.position += 1
        return self.w["output"] @ rms_norm(x, self.w["norm"], epsilon)


def main():
    if sys.argv[1:2] == ["--random-tiny"]:
        architecture, seed, path = sys.argv[2:5]
        random_tiny(path, architecture, int(seed))
        return
    model, prompt, n = Model(sys.argv[1]), open(sys.argv[2], "rb").read(), int(sys.argv[3])
    for token in prompt[:-1]:
        model.step(token)
    token = prompt[-1]
    for _ in range(n):
        logits = model.step(token)
        token = int(logits.argmax())
        print(json.dumps({"position": model.position - 1, "token": token, "logits": [float(f"{x:.9g}") for x in logits]}))


if __name__ == "__main__":
    main()
