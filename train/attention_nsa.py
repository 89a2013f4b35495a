# SPDX-License-Identifier: Apache-2.0
"""NSA: compressed, selected and window branches. Sparse from the first step of training on."""
import torch
import torch.nn.functional as F
from torch import nn

from attention_gqa import GqaLayer
from layers import (MASK_ELEMENTS, attention_dtype, attention_weights, causal_attention, masked_attention, rope_pairs, rope_table, round_bf16,
                    rows_at, top_mask)


def overlaps(n_rows, n_blocks, shape, like):
    """[rows][blocks]: how many pieces of compress_stride tokens compressed row i shares with block j."""
    per_block, per_row = (shape[name] // shape["compress_stride"] for name in ("block_tokens", "compress_tokens"))
    row, block = torch.arange(n_rows, device=like.device)[:, None], torch.arange(n_blocks, device=like.device) * per_block
    shared = torch.minimum(row + per_row, block + per_block) - torch.maximum(row, block)
    return shared.clamp(min=0).to(like.dtype)


def window_attention(q, k, v, scale, window):
    """Attention to the newest `window` tokens: pieces of that length see themselves and the piece before."""
    batch, heads, n, d = q.shape
    rest = -n % window
    q, k, v = (F.pad(x, (0, 0, 0, rest)) for x in (q, k, v))
    pieces = (n + rest) // window
    # Piece p of q next to pieces p - 1 and p of k and v; before piece 0 are zeros that the mask leaves out.
    both = lambda x: torch.cat((F.pad(x, (0, 0, 0, 0, 1, 0))[:, :, :-1], x), 3)
    cut = lambda x: x.unflatten(2, (pieces, window))
    flat = lambda x: x.transpose(1, 2).flatten(0, 1)  # [batch * pieces][heads][rows][channels]
    row, column = torch.arange(window, device=q.device)[:, None], torch.arange(2 * window, device=q.device)
    mask = ((column > row) & (column <= row + window)).expand(pieces, 1, -1, -1).clone()
    mask[0] &= column >= window
    mask = mask.repeat(batch, 1, 1, 1)
    repeat = heads // k.shape[1]
    k, v = (flat(both(cut(x))).repeat_interleave(repeat, 1) for x in (k, v))
    out = F.scaled_dot_product_attention(flat(cut(q)), k, v, mask, scale=scale)
    return out.unflatten(0, (batch, pieces)).transpose(1, 2).flatten(2, 3)[:, :, :n]


class NsaLayer(GqaLayer):
    def __init__(self, shape, index):
        super().__init__(shape, index)
        g, l, d = shape["n_kv_heads"], shape["compress_tokens"], shape["head_dim"]
        # Begin as means over the span: 1/l for values, l^-0.5 for keys, whose mean is else too small to tell spans apart.
        self.compress_key_mix = nn.Parameter(torch.full((g, l, d), l**-0.5))
        self.compress_value_mix = nn.Parameter(torch.full((g, l, d), 1.0 / l))
        self.compress_key_projection = nn.Parameter(torch.eye(d).repeat(g, 1, 1))
        self.compress_value_projection = nn.Parameter(torch.eye(d).repeat(g, 1, 1))
        self.branch_gate = nn.Parameter(torch.zeros(shape["n_heads"] * 3, shape["embedding"]))

    def compress(self, x, mix, projection):
        """Compressed rows [batch][KV heads][rows][channels] of x [batch][KV heads][tokens][channels], kept as bf16."""
        stride, l = self.shape["compress_stride"], self.shape["compress_tokens"]
        n_rows = max(0, (x.shape[2] - l) // stride + 1)
        n_pieces = n_rows + l // stride - 1 if n_rows else 0
        pieces = x[:, :, : n_pieces * stride].unflatten(2, (n_pieces, stride))
        parts = [torch.einsum("bgnsd,gsd->bgnd", pieces[:, :, i : i + n_rows], mix[:, i * stride : (i + 1) * stride])
                 for i in range(l // stride)]
        return round_bf16(torch.einsum("bgnd,ged->bgne", sum(parts), projection))

    def complete(self, n_rows, positions):
        """Which compressed rows queries at positions [batch or 1][n] see: those whose last token is there."""
        last = torch.arange(n_rows, device=positions.device) * self.shape["compress_stride"] + self.shape["compress_tokens"] - 1
        return last <= positions[:, None, :, None]

    def compressed_branch(self, q, keys, values):
        n, n_rows = q.shape[2], keys.shape[2]
        if n_rows == 0:
            return torch.zeros_like(q)
        seen = self.complete(n_rows, torch.arange(n, device=q.device)[None])
        any_seen = seen.any(-1, keepdim=True)
        repeat = q.shape[1] // keys.shape[1]
        padding = -n_rows % 8  # the kernels' masks have rows of multiples of 8
        keys, values = (F.pad(x, (0, 0, 0, padding)).repeat_interleave(repeat, 1) for x in (keys, values))
        mask = F.pad(seen, (0, padding)) | ~any_seen  # a row without any would be NaN; its result is dropped
        out = F.scaled_dot_product_attention(q, keys, values, mask, scale=self.scale)
        return out * any_seen

    def row_weights(self, q, keys, positions):
        """The softmaxed scores of compressed rows summed over a KV head's query heads: [batch][KV heads][n][rows]."""
        groups = keys.shape[1]
        seen = self.complete(keys.shape[2], positions)
        scores = q @ keys.repeat_interleave(q.shape[1] // groups, 1).transpose(2, 3) * self.scale
        weights = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1) * seen
        return weights.unflatten(1, (groups, -1)).sum(2)

    def choose_blocks(self, q, keys, positions, limit):
        """[batch][KV heads][n][blocks], for queries before rope."""
        n_blocks = -(-limit // self.shape["block_tokens"])
        importance = q.new_zeros(q.shape[0], keys.shape[1], q.shape[2], n_blocks)
        if keys.shape[2]:
            importance = self.row_weights(q, keys, positions) @ overlaps(keys.shape[2], n_blocks, self.shape, q)
        blocks = torch.arange(n_blocks, device=q.device)
        newest = positions[:, None, :, None] // self.shape["block_tokens"]
        forced = (blocks < self.shape["n_first"]) | (blocks > newest - self.shape["n_local"])
        return top_mask(importance.masked_fill(forced, float("inf")), self.shape["n_blocks"], blocks <= newest)

    def choose_tokens(self, q, keys, positions, limit):
        with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
            q = q.to(torch.promote_types(q.dtype, torch.float32))
            keys = keys[:, :, : max(0, limit - self.shape["compress_tokens"]) // self.shape["compress_stride"] + 1].to(q.dtype)
            rows = max(16, MASK_ELEMENTS // 4 // (q.shape[0] * q.shape[1] * max(1, keys.shape[2])))
            blocks = torch.cat([self.choose_blocks(q[:, :, i : i + rows], keys, positions[:, i : i + rows], limit)
                                for i in range(0, q.shape[2], rows)], 2)
            tokens = blocks.repeat_interleave(self.shape["block_tokens"], -1)[..., :limit]
            return tokens & (torch.arange(limit, device=q.device) <= positions[:, None, :, None])

    def selector_loss(self, plain, keys, q, k, positions):
        """KL from the weight that token attention gives to blocks to their importance, over blocks that compete for a
        place, each query weighed by what it gives to them. Selection passes no gradient, so without this nothing tells
        the compressed keys which blocks the selected branch needs."""
        target = attention_weights(q, k, positions, self.scale).unflatten(1, (k.shape[1], -1)).mean(2)
        block, n = self.shape["block_tokens"], target.shape[3]
        target = F.pad(target, (0, -n % block)).unflatten(3, (-1, block)).sum(-1)
        with torch.autocast(q.device.type, enabled=False):
            sums = self.row_weights(plain.float(), keys.float(), positions)
            importance = sums @ overlaps(keys.shape[2], target.shape[3], self.shape, sums)
            blocks, newest = torch.arange(target.shape[3], device=q.device), positions[:, None, :, None] // block
            compete = (blocks >= self.shape["n_first"]) & (blocks <= newest - self.shape["n_local"])
            target = target * compete
            share = (importance * compete).clamp(min=1e-9)
            share = share / share.sum(-1, keepdim=True)
            total = target.sum(-1, keepdim=True).clamp(min=1e-9)
            return (target * ((target / total).clamp(min=1e-9).log() - share.log())).sum(-1).mean()

    def attend(self, x, run):
        plain, k_plain, v_plain = self.projections(x)
        keys = self.compress(k_plain, self.compress_key_mix, self.compress_key_projection)
        values = self.compress(v_plain, self.compress_value_mix, self.compress_value_projection)
        table = rope_table(x.shape[1], self.shape["head_dim"], self.shape["rope_theta"], x)
        q, k, v = rope_pairs(plain, table), round_bf16(rope_pairs(k_plain, table)), round_bf16(v_plain)
        if run.want:
            at = [rows_at(rows, run.positions) for rows in (plain, q)]
        if run.want == "loss" and keys.shape[2]:
            run.losses.append(self.selector_loss(at[0], keys, at[1], k, run.positions))
        if run.want == "probe":
            run.probe(self.index, at[1], k, self.scale,
                      lambda positions, limit: self.choose_tokens(at[0], keys, positions, limit))
        if run.mode == "dense":
            selected = causal_attention(q, k, v, self.scale)
        else:
            selected = masked_attention(q, k, v, self.scale, lambda start, end: self.choose_tokens(
                plain[:, :, start:end], keys, torch.arange(start, end, device=x.device)[None], end))
        dtype = attention_dtype(x)
        window = window_attention(q.to(dtype), k.to(dtype), v.to(dtype), self.scale, self.shape["window"])
        compressed = self.compressed_branch(plain.to(dtype), keys.to(dtype), values.to(dtype))
        gates = F.linear(x, self.branch_gate).sigmoid().unflatten(-1, (-1, 3)).transpose(1, 2)[..., None, :]
        return compressed * gates[..., 0] + selected * gates[..., 1] + window * gates[..., 2]

