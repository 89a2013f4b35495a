# SPDX-License-Identifier: Apache-2.0
"""Latent attention with the lightning indexer of DeepSeek sparse attention."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

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
        q = split_heads(F.linear(x, self.index_query), hi)
        k = F.linear(x, self.index_key)
        with torch.autocast(x.device.type, enabled=False):
            k = F.layer_norm(k.to(x.dtype), (di,), self.index_key_norm_weight, self.index_key_norm_bias, INDEX_NORM_EPSILON)
            turn = hadamard(di, x)
            q, k = (pack_index(rope_halves(y.to(x.dtype), table, r) @ turn, self.shape["index_dtype"]) for y in (q, k))
            return q.transpose(1, 2), k, F.linear(x, self.index_weight) * (hi * di) ** -0.5

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

    def attend(self, x, run):
        table = rope_table(x.shape[1], self.shape["rope_dim"], self.shape["rope_theta"], x)
        q, k, v = self.heads_of(x, table)
        if run.mode == "dense" and not run.want:
            return causal_attention(q, k, v, self.scale)
        iq, ik, weights = self.indexer(x)
        # Packed numbers are exact in bf16; only sums of products are rounded, which training can bear.
        cast = (lambda y: y.bfloat16()) if torch.is_autocast_enabled() else (lambda y: y)
        if run.want:
            index = run.positions[:, :, None]
            at = (iq.gather(1, index[..., None].expand(-1, -1, *iq.shape[2:])), ik,
                  weights.gather(1, index.expand(-1, -1, weights.shape[2])))
            select = lambda positions, limit: self.choose(tuple(map(cast, at)), positions, limit)
            rows = rows_at(q, run.positions)
        if run.want == "probe":
            run.probe(self.index, rows, k, self.scale, select)
        if run.want == "loss":
            target = attention_weights(rows, k, run.positions, self.scale).mean(1)
            chosen = select(run.positions, x.shape[1])[:, 0] if run.mode == "sparse" else None
            run.losses.append(checkpoint(self.index_loss, *at, run.positions, target, chosen, use_reentrant=False,
                                         preserve_rng_state=False))
        if run.mode == "dense":
            return causal_attention(q, k, v, self.scale)
        iq, ik, weights = (cast(y).detach() for y in (iq, ik, weights))
        return masked_attention(q, k, v, self.scale, lambda start, end: self.choose(
            (iq[:, start:end], ik, weights[:, start:end]), torch.arange(start, end, device=x.device)[None], end))
