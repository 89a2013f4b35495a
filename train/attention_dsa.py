# SPDX-License-Identifier: Apache-2.0
"""Latent attention with the lightning indexer of DeepSeek sparse attention."""
import torch
import torch.nn.functional as F
from torch import nn

from layers import (MASK_ELEMENTS, attention_dtype, attention_weights, causal_attention, hadamard, masked_attention, pack_index,
                    rope_halves, rope_pairs, rope_table, round_bf16, rows_at, top_mask)
from model import Layer, matrix, split_heads

INDEX_NORM_EPSILON = 1e-6


def index_scores(q, k, weights):
    """sum over index heads of weight * relu(q . k): [batch][n][tokens] of q [batch][n][heads][channels]."""
    batch, n, heads, _ = q.shape
    products = (q.flatten(1, 2) @ k.transpose(1, 2)).relu_()
    return (weights[:, :, None] @ products.view(batch, n, heads, -1)).squeeze(2)


class DsaLayer(Layer):
    @staticmethod
    def value_channels(shape):
        return shape["n_heads"] * shape["value_dim"]

    def __init__(self, shape, index):
        super().__init__(shape, index)
        e, h, latent = shape["embedding"], shape["n_heads"], shape["latent_dim"]
        self.scale = (shape["nope_dim"] + shape["rope_dim"]) ** -0.5
        self.query = matrix(h * (shape["nope_dim"] + shape["rope_dim"]), e)
        self.latent, self.rope_key = matrix(latent, e), matrix(shape["rope_dim"], e)
        self.latent_norm = nn.Parameter(torch.ones(latent))
        self.key_up = matrix(h, shape["nope_dim"], latent)
        self.value_up = matrix(h, shape["value_dim"], latent)
        hi, di = shape["index_heads"], shape["index_dim"]
        self.index_query, self.index_key, self.index_weight = matrix(hi * di, e), matrix(di, e), matrix(hi, e)
        self.index_key_norm_weight = nn.Parameter(torch.ones(di))
        self.index_key_norm_bias = nn.Parameter(torch.zeros(di))

    def latent_rows(self, x, table):
        """What the cache keeps of every token: latent and key rope part, as bf16."""
        c = self.norm(F.linear(x, self.latent).to(x.dtype), self.latent_norm)
        return round_bf16(c), round_bf16(rope_pairs(F.linear(x, self.rope_key), table))

    def heads_of(self, x, table):
        """Queries, keys and values of all heads, the latent spread out."""
        c, k_rope = self.latent_rows(x, table)
        q = split_heads(F.linear(x, self.query), self.shape["n_heads"])
        nope = self.shape["nope_dim"]
        q = torch.cat((q[..., :nope], rope_pairs(q[..., nope:], table).to(q.dtype)), -1)
        k = split_heads(F.linear(c, self.key_up.flatten(0, 1)), self.shape["n_heads"])
        k = torch.cat((k, k_rope[:, None].expand(-1, k.shape[1], -1, -1).to(k.dtype)), -1)
        return q, k, split_heads(F.linear(c, self.value_up.flatten(0, 1)), self.shape["n_heads"])

    def indexer(self, x):
        """Packed query [batch][tokens][heads][channels] and key, and weights; nothing flows back into x."""
        x, (hi, di, r) = x.detach(), (self.shape[name] for name in ("index_heads", "index_dim", "index_rope_dim"))
        table = rope_table(x.shape[1], r, self.shape["rope_theta"], x)
        narrow = x.to(self.index_query.dtype)  # in training, weights are bf16 and x is wider
        q = split_heads(F.linear(narrow, self.index_query), hi)
        k = F.linear(narrow, self.index_key)
        with torch.autocast(x.device.type, enabled=False):
            as_x = lambda y: y.to(x.dtype)
            k = F.layer_norm(as_x(k), (di,), as_x(self.index_key_norm_weight), as_x(self.index_key_norm_bias), INDEX_NORM_EPSILON)
            turn = hadamard(di, x)
            q, k = (pack_index(rope_halves(as_x(y), table, r) @ turn, self.shape["index_dtype"]) for y in (q, k))
            return q.transpose(1, 2), k, F.linear(x, as_x(self.index_weight)) * (hi * di) ** -0.5

    def choose(self, index, positions, limit):
        """[batch][1][n][limit]: index is the query, all keys and the weights of queries at positions."""
        q, k, weights = index
        with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
            rows = max(16, MASK_ELEMENTS // (q.shape[0] * q.shape[2] * limit))
            tokens, pieces = torch.arange(limit, device=q.device), []
            for i in range(0, q.shape[1], rows):
                scores = index_scores(q[:, i : i + rows], k[:, :limit], weights[:, i : i + rows])
                pieces.append(top_mask(scores, self.shape["top_k"], tokens <= positions[:, i : i + rows, None]))
            return torch.cat(pieces, 1)[:, None]

    def index_loss(self, iq, ik, weights, positions, target, chosen):
        """KL from attention, summed over heads, to the softmaxed index scores, over the tokens that attention sees."""
        with torch.autocast(iq.device.type, enabled=False):
            dtype = attention_dtype(iq)
            scores = index_scores(iq.to(dtype), ik.to(dtype), weights.to(dtype)).to(iq.dtype)
            seen = torch.arange(ik.shape[1], device=ik.device) <= positions[:, :, None]
            if chosen is not None:
                seen = seen & chosen
            guess = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).log_softmax(-1)
            target = target * seen
            target = target / target.sum(-1, keepdim=True)
            return (target * (target.clamp(min=1e-9).log() - guess) * seen).sum(-1).mean()

    def cast(self, index):
        """Packed numbers are exact in bf16; only sums of products are rounded, which training can bear."""
        return tuple(y.bfloat16() if self.index_query.dtype == torch.bfloat16 else y for y in index)

    def rows_of(self, index, positions):
        """The indexer's queries and weights at positions, and all its keys."""
        q, k, weights = index
        at = positions[:, :, None]
        return q.gather(1, at[..., None].expand(-1, -1, *q.shape[2:])), k, weights.gather(1, at.expand(-1, -1, weights.shape[2]))

    def chooser(self, index):
        """select(start, end) for masked_attention"""
        q, k, weights = (y.detach() for y in self.cast(index))
        every = torch.arange(q.shape[1], device=q.device)[None]
        return lambda start, end: self.choose((q[:, start:end], k, weights[:, start:end]), every[:, start:end], end)

    def loss_at(self, index, q, k, run):
        """The selector's loss of the queries at run.positions, of q and k [batch][heads][tokens][channels]."""
        at = self.rows_of(index, run.positions)
        target = attention_weights(rows_at(q, run.positions), k, run.positions, self.scale).mean(1)
        chosen = self.choose(self.cast(at), run.positions, k.shape[2])[:, 0] if run.mode == "sparse" else None
        return self.index_loss(*at, run.positions, target, chosen)

    def attend(self, x, run):
        table = rope_table(x.shape[1], self.shape["rope_dim"], self.shape["rope_theta"], x)
        q, k, v = self.heads_of(x, table)
        if run.mode == "dense" and not run.want:
            return causal_attention(q, k, v, self.scale)
        index = self.indexer(x)
        if run.want == "probe":
            at = self.cast(self.rows_of(index, run.positions))
            run.probe(self.index, rows_at(q, run.positions), k, self.scale,
                      lambda positions, limit: self.choose(at, positions, limit))
        if run.want == "loss":
            run.losses.append(self.loss_at(index, q, k, run))
        if run.mode == "dense":
            return causal_attention(q, k, v, self.scale)
        return masked_attention(q, k, v, self.scale, self.chooser(index))
