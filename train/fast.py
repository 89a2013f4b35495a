# SPDX-License-Identifier: Apache-2.0
"""The forward pass for training: the arithmetic of model.py and attention_*.py, arranged for speed.

Tokens of all sequences lie in one row, [tokens][...], and a step always has as many. What is not attention sees nothing of
sequences, so each piece is compiled once, whatever the window, and serves all layers. Attention calls flash or cuDNN
kernels. Activations are as the weights, bf16 on a GPU."""
import torch
import torch.nn.functional as F

import kernels
from layers import masked_attention, rope_table, round_bf16, rows_at
from model import Run


# ------------------------------------------------------------------------------------------------- compiled pieces --
def wide(x):
    return x.to(torch.promote_types(x.dtype, torch.float32))


def rms(x, weight, epsilon):
    y = wide(x)
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + epsilon) * weight).to(x.dtype)


def turn(x, cos, sin):
    """rope_pairs of x [tokens][heads][channels]; cos, sin [tokens][1][channels / 2]"""
    a, b = wide(x[..., 0::2]), wide(x[..., 1::2])
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)


def spread(x, heads):
    """[tokens][KV heads][channels] to all heads: then every kernel takes it."""
    return x[:, :, None].expand(-1, -1, heads // x.shape[1], -1).reshape(x.shape[0], heads, x.shape[2])


def linear(x, *weights):
    """One product with several matrices."""
    return F.linear(x, torch.cat(weights)).split([len(weight) for weight in weights], -1)


def before_gqa(x, norm, query, key, value, cos, sin, heads, groups, epsilon):
    q, k, v = (y.unflatten(-1, (n, -1)) for y, n in
               zip(linear(rms(x, norm, epsilon), query, key, value), (heads, groups, groups)))
    return turn(q, cos, sin), spread(round_bf16(turn(k, cos, sin)), heads), spread(round_bf16(v), heads)


def pieces_of(x, mix, stride):
    """Weighted sums of stride tokens [parts][tokens / stride][KV heads][channels]: a compressed row is the sum of part 0
    of its first piece, part 1 of the next and so on."""
    x = wide(x).unflatten(0, (-1, stride))
    return torch.stack([(x * part.transpose(0, 1)).sum(1) for part in wide(mix).split(stride, 1)]).to(mix.dtype)


def before_nsa(x, norm, query, key, value, branch_gate, key_mix, value_mix, cos, sin, heads, groups, stride, epsilon):
    q, k, v, gates = linear(rms(x, norm, epsilon), query, key, value, branch_gate)
    q, k, v = (y.unflatten(-1, (n, -1)) for y, n in ((q, heads), (k, groups), (v, groups)))
    return (q, turn(q, cos, sin), spread(round_bf16(turn(k, cos, sin)), heads), spread(round_bf16(v), heads),
            pieces_of(k, key_mix, stride), pieces_of(v, value_mix, stride), gates.sigmoid().unflatten(-1, (heads, 3)))


def before_dsa(x, norm, query, latent, rope_key, latent_norm, key_up, value_up, cos, sin, heads, nope, epsilon):
    y = rms(x, norm, epsilon)
    q, c, k_rope = linear(y, query, latent, rope_key)
    q = q.unflatten(-1, (heads, -1))
    q = torch.cat((q[..., :nope], turn(q[..., nope:], cos, sin)), -1)
    k, v = linear(round_bf16(rms(c, latent_norm, epsilon)), key_up.flatten(0, 1), value_up.flatten(0, 1))
    k_rope = round_bf16(turn(k_rope[:, None], cos, sin)).expand(-1, heads, -1)
    k = torch.cat((k.unflatten(-1, (heads, -1)), k_rope), -1)
    return y.detach(), q, k, F.pad(v.unflatten(-1, (heads, -1)), (0, k.shape[-1] - value_up.shape[1]))  # flash wants one width


def after(x, heads, output, norm, gate, up, down, epsilon):
    x = x + F.linear(heads, output)
    a, b = linear(rms(x, norm, epsilon), gate, up)
    return x + F.linear(F.silu(a) * b, down)


def after_nsa(x, compressed, selected, window, gates, output, norm, gate, up, down, epsilon):
    heads = compressed * gates[..., 0:1] + selected * gates[..., 1:2] + window * gates[..., 2:3]
    return after(x, heads.flatten(1), output, norm, gate, up, down, epsilon)


def leave(x, norm, output, targets, weights, answer_weight, epsilon):
    """The loss, and sums for the log."""
    logits = wide(F.linear(rms(x, norm, epsilon), output))
    losses = logits.logsumexp(-1) - logits.gather(-1, targets[:, None])[:, 0]
    loss = (losses * weights).sum() / weights.sum()
    of, plain, answers = losses.detach(), weights == 1, weights == answer_weight
    right = logits.detach().argmax(-1) == targets
    sums = ((of * plain).sum(), plain.sum(), (of * answers).sum(), answers.sum(), (right & answers).sum())
    return loss, torch.stack([value.to(loss.dtype) for value in sums])


PIECES = (before_gqa, before_nsa, before_dsa, after, after_nsa, leave)


class Fast:
    """model's parameters seen through the pieces above; sparse selections and losses are those of its layers."""

    def __init__(self, model, answer_weight, compiled):
        self.model, self.shape, self.answer_weight = model, model.shape, answer_weight
        for piece in PIECES:
            setattr(self, piece.__name__, torch.compile(piece, dynamic=False) if compiled else piece)
        self.tables = {}
        kind = {"gqa_quest": self.quest, "gqa_nsa": self.nsa, "mla_dsa": self.dsa}
        self.layer = kind[self.shape["architecture"]]

    def table(self, batch, length, x):
        """cos and sin of every token's position in its sequence."""
        if (batch, length) not in self.tables:
            channels = self.shape["head_dim" if "head_dim" in self.shape else "rope_dim"]
            one = rope_table(length, channels, self.shape["rope_theta"], wide(x[:1, :1]).detach())
            self.tables[batch, length] = tuple(part.repeat(batch, 1)[:, None] for part in one)
        return self.tables[batch, length]

    def loss(self, tokens, targets, weights, mode, positions=None):
        """Loss, the selector's loss (wanted if there are positions [batch][n]) and sums, of tokens [batch][length]."""
        batch, length = tokens.shape
        run = Run(mode, positions, "" if positions is None else "loss")
        # A product with ones and zeros: its gradient is one too, where a gather's is a sort.
        embedding = self.model.embedding
        x = (tokens.flatten()[:, None] == torch.arange(len(embedding), device=tokens.device)).to(embedding.dtype) @ embedding
        for layer in self.model.layers:
            x = self.layer(layer, x, batch, run)
        loss, sums = self.leave(x, self.model.norm, self.model.output, targets.flatten(), weights.flatten(),
                                self.answer_weight, self.shape["norm_epsilon"])
        return loss, sum(run.losses) if run.losses else loss.new_zeros(()), sums

    def rest(self, layer):
        return layer.attention_output, layer.ffn_norm, layer.gate, layer.up, layer.down, self.shape["norm_epsilon"]

    def quest(self, layer, x, batch, run):
        s = self.shape
        q, k, v = self.before_gqa(x, layer.attention_norm, layer.query, layer.key, layer.value, *self.table(batch, len(x) // batch, x),
                                  s["n_heads"], s["n_kv_heads"], s["norm_epsilon"])
        return self.after(x, kernels.causal(q, k, v, batch, layer.scale).flatten(1), *self.rest(layer))

    def nsa(self, layer, x, batch, run):
        s, length = self.shape, len(x) // batch
        plain, q, k, v, key_pieces, value_pieces, gates = self.before_nsa(
            x, layer.attention_norm, layer.query, layer.key, layer.value, layer.branch_gate, layer.compress_key_mix,
            layer.compress_value_mix, *self.table(batch, length, x), s["n_heads"], s["n_kv_heads"], s["compress_stride"],
            s["norm_epsilon"])
        keys = compressed_rows(key_pieces, layer.compress_key_projection, batch)
        values = compressed_rows(value_pieces, layer.compress_value_projection, batch)
        seen = lambda y: y.unflatten(0, (batch, length)).transpose(1, 2)
        few = lambda y: seen(y[:, :: s["n_heads"] // s["n_kv_heads"]])  # KV heads before they were spread
        row_keys = keys.transpose(1, 2)
        if run.want:
            run.losses.append(layer.selector_loss(rows_at(seen(plain), run.positions), row_keys,
                                                  rows_at(seen(q), run.positions), few(k), run.positions))
        if run.mode == "dense":
            selected = kernels.causal(q, k, v, batch, layer.scale)
        else:
            every = torch.arange(length, device=x.device)[None]
            selected = masked_attention(seen(q), few(k), few(v), layer.scale, lambda start, end: layer.choose_tokens(
                seen(plain)[:, :, start:end], row_keys, every[:, start:end], end)).transpose(1, 2).flatten(0, 1)
        window = kernels.window(q, k, v, batch, layer.scale, s["window"])
        compressed = kernels.compressed(plain, keys, values, batch, layer.scale, s["compress_tokens"], s["compress_stride"])
        return self.after_nsa(x, compressed, selected, window, gates, *self.rest(layer))

    def dsa(self, layer, x, batch, run):
        s, length = self.shape, len(x) // batch
        y, q, k, v = self.before_dsa(x, layer.attention_norm, layer.query, layer.latent, layer.rope_key, layer.latent_norm,
                                     layer.key_up, layer.value_up, *self.table(batch, length, x), s["n_heads"], s["nope_dim"],
                                     s["norm_epsilon"])
        seen = lambda z: z.unflatten(0, (batch, length)).transpose(1, 2)
        index = None
        if run.want or run.mode == "sparse":
            index = layer.indexer(wide(y).unflatten(0, (batch, length)))
        if run.want:
            run.losses.append(layer.loss_at(index, seen(q), seen(k), run))
        if run.mode == "dense":
            heads = kernels.causal(q, k, v, batch, layer.scale)
        else:
            heads = masked_attention(seen(q), seen(k), seen(v), layer.scale, layer.chooser(index)).transpose(1, 2).flatten(0, 1)
        return self.after(x, heads[..., : s["value_dim"]].flatten(1), *self.rest(layer))


def compressed_rows(pieces, projection, batch):
    """[batch][rows][KV heads][channels] of pieces [parts][batch * pieces][KV heads][channels]"""
    parts = pieces.unflatten(1, (batch, -1))
    n = parts.shape[2] - len(parts) + 1
    rows = sum(part[:, i : i + n] for i, part in enumerate(parts))
    return round_bf16(torch.einsum("bngd,ged->bnge", rows, projection))
