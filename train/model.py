# SPDX-License-Identifier: Apache-2.0
"""Decoder and the layer that all three share. The parameters' names and shapes are those of the exported file.

A layer's attend() gets the normed input and a Run, and gives the heads' outputs. Extra results go into the Run."""
import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn

from layers import attention_weights


@dataclasses.dataclass
class Run:
    """One forward pass: what attention sees, and what is wanted besides."""
    mode: str = "dense"                     # "dense" or "sparse"
    positions: torch.Tensor | None = None   # [batch][n] queries for the selector's loss or measurement
    want: str = ""                          # "loss": the selector's loss; "probe": how good its choices are
    losses: list = dataclasses.field(default_factory=list)
    probes: list = dataclasses.field(default_factory=list)

    def probe(self, layer, q, k, scale, select):
        """Compare the selection with the tokens that attention weighs most, head group by head group."""
        weights = attention_weights(q, k, self.positions, scale)
        chosen = select(self.positions, weights.shape[3])  # [batch][1 or KV heads][n][tokens]
        batch, groups, n, tokens = chosen.shape
        summed = weights.view(batch, groups, -1, n, tokens).mean(2)
        size = chosen.sum(-1)
        k_most = int(size.max())
        best = summed.topk(k_most, -1).indices
        rank = torch.arange(k_most, device=q.device)
        found = (chosen.gather(-1, best) & (rank < size[..., None])).sum(-1) / size
        mass = (summed * chosen).sum(-1)
        most = (summed.gather(-1, best) * (rank < size[..., None])).sum(-1)
        self.probes.append({"layer": layer, "recall": found.mean().item(), "mass": mass.mean().item(),
                            "mass_of_best": most.mean().item(), "selected": size.double().mean().item()})


def matrix(*shape, fan_in=None):
    return nn.Parameter(torch.randn(*shape) * (fan_in or shape[-1]) ** -0.5)


class Layer(nn.Module):
    def __init__(self, shape, index):
        super().__init__()
        self.shape, self.index = shape, index
        e, f = shape["embedding"], shape["ffn"]
        self.attention_norm = nn.Parameter(torch.ones(e))
        self.ffn_norm = nn.Parameter(torch.ones(e))
        self.gate, self.up = matrix(f, e), matrix(f, e)
        self.down = nn.Parameter(torch.zeros(e, f))
        self.attention_output = nn.Parameter(torch.zeros(e, self.value_channels(shape)))

    def norm(self, x, weight):
        return F.rms_norm(x, weight.shape, weight, self.shape["norm_epsilon"])

    def forward(self, x, run):
        heads = self.attend(self.norm(x, self.attention_norm), run)
        x = x + F.linear(heads.transpose(1, 2).flatten(2), self.attention_output)
        y = self.norm(x, self.ffn_norm)
        return x + F.linear(F.silu(F.linear(y, self.gate)) * F.linear(y, self.up), self.down)


def split_heads(x, n_heads):
    """[batch][tokens][heads * channels] to [batch][heads][tokens][channels]"""
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


class Decoder(nn.Module):
    def __init__(self, shape):
        super().__init__()
        from attention_dsa import DsaLayer
        from attention_gqa import QuestLayer
        from attention_nsa import NsaLayer
        kind = {"gqa_quest": QuestLayer, "gqa_nsa": NsaLayer, "mla_dsa": DsaLayer}[shape["architecture"]]
        self.shape = shape
        self.embedding = nn.Parameter(torch.randn(shape["vocab"], shape["embedding"]) * 0.5)
        self.norm = nn.Parameter(torch.ones(shape["embedding"]))
        self.output = nn.Parameter(torch.zeros(shape["vocab"], shape["embedding"]))
        self.layers = nn.ModuleList(kind(shape, i) for i in range(shape["n_layers"]))

    def forward(self, tokens, run, last=None):
        """Logits of all positions, or of the last ones."""
        x = F.embedding(tokens, self.embedding)
        for layer in self.layers:
            x = layer(x, run)
        if last:
            x = x[:, -last:]
        return F.linear(F.rms_norm(x, self.norm.shape, self.norm, self.shape["norm_epsilon"]), self.output)


def bits(loss):
    return loss / math.log(2)
