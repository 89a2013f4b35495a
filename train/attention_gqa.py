# SPDX-License-Identifier: Apache-2.0
"""Grouped-query attention, and Quest's choice of pages over it: trained dense, sparse at inference only."""
import torch
import torch.nn.functional as F

from layers import causal_attention, masked_attention, rope_pairs, rope_table, round_bf16, rows_at, top_mask
from model import Layer, matrix, split_heads


class GqaLayer(Layer):
    @staticmethod
    def value_channels(shape):
        return shape["n_heads"] * shape["head_dim"]

    def __init__(self, shape, index):
        super().__init__(shape, index)
        e, d = shape["embedding"], shape["head_dim"]
        self.scale = d**-0.5
        self.query = matrix(shape["n_heads"] * d, e)
        self.key = matrix(shape["n_kv_heads"] * d, e)
        self.value = matrix(shape["n_kv_heads"] * d, e)

    def projections(self, x):
        """Query, key and value before rope, heads second."""
        heads, groups = self.shape["n_heads"], self.shape["n_kv_heads"]
        return tuple(split_heads(F.linear(x, weight), n)
                     for weight, n in ((self.query, heads), (self.key, groups), (self.value, groups)))


def page_bounds(k, page):
    """Minima and maxima [batch][KV heads][pages][channels]; an incomplete last page repeats its last key."""
    rest = -k.shape[2] % page
    if rest:
        k = torch.cat((k, k[:, :, -1:].expand(-1, -1, rest, -1)), 2)
    pages = k.unflatten(2, (-1, page))
    return pages.amin(3), pages.amax(3)


def choose_pages(q, bounds, positions, limit, page, top_k):
    """Quest's selection of the queries q [batch][heads][n][channels] at positions [batch or 1][n], among tokens below
    limit. Bounds may cover tokens after a query: only its own page then differs, and that page is always in."""
    minima, maxima = (bound[:, :, : -(-limit // page)].to(q.dtype) for bound in bounds)
    mean = q.unflatten(1, (minima.shape[1], -1)).mean(2)
    scores = (mean.clamp(min=0) @ maxima.transpose(2, 3) + mean.clamp(max=0) @ minima.transpose(2, 3)).sum(1)
    pages, newest = torch.arange(scores.shape[2], device=q.device), positions[:, :, None] // page
    chosen = top_mask(scores.masked_fill(pages == newest, float("inf")), top_k // page, pages <= newest)
    tokens = chosen.repeat_interleave(page, -1)[..., :limit]
    return (tokens & (torch.arange(limit, device=q.device) <= positions[:, :, None]))[:, None]


class QuestLayer(GqaLayer):
    def attend(self, x, run):
        q, k, v = self.projections(x)
        table = rope_table(x.shape[1], self.shape["head_dim"], self.shape["rope_theta"], x)
        q, k, v = rope_pairs(q, table), round_bf16(rope_pairs(k, table)), round_bf16(v)
        bounds = page_bounds(k, self.shape["page_tokens"])
        select = lambda rows, positions, limit: choose_pages(rows, bounds, positions, limit, self.shape["page_tokens"],
                                                             self.shape["top_k"])
        if self.index < self.shape["dense_layers"]:
            return causal_attention(q, k, v, self.scale)
        if run.want == "probe":
            rows = rows_at(q, run.positions)
            run.probe(self.index, rows, k, self.scale, lambda positions, limit: select(rows, positions, limit))
        if run.mode == "dense":
            return causal_attention(q, k, v, self.scale)
        of_range = lambda start, end: select(q[:, :, start:end], torch.arange(start, end, device=x.device)[None], end)
        return masked_attention(q, k, v, self.scale, of_range)
