# SPDX-License-Identifier: Apache-2.0
"""Begin a model from a trained one. From look-quest: what is alike is copied, attention is carried over as far as it can be.
From one of its own kind: all of it."""
import torch

from layers import rope_table


@torch.no_grad()
def begin(model, base):
    ours, theirs = dict(model.named_parameters()), dict(base.named_parameters())
    shared = [name for name, p in ours.items() if name in theirs and theirs[name].shape == p.shape]
    kind, same = model.shape["architecture"], model.shape["architecture"] == base.shape["architecture"]
    if kind == "mla_dsa" and not same:
        shared = [name for name in shared if not name.endswith(".query")]
    for name in shared:
        ours[name].copy_(theirs[name])
    if same:
        assert len(shared) == len(ours)
        return
    for layer, source in zip(model.layers, base.layers):
        if kind == "mla_dsa":
            latent_of_gqa(layer, source, base.shape)
        elif kind == "gqa_nsa":
            # With gates at a half, window and selected branch are together what dense attention was to near tokens. The
            # compressed branch begins silent; its keys, which choose blocks, as means.
            layer.compress_value_projection.zero_()


def latent_of_gqa(layer, source, shape):
    """The latent is all KV heads' keys and values, but normalised: its weight brings back their size as it would be for
    inputs whose channels are independent. Heads of the first KV head use only the part with rope, which is their key,
    exactly; the others only the part without, so they lose their sense of distance."""
    d, groups, heads = shape["head_dim"], shape["n_kv_heads"], shape["n_heads"]
    assert layer.latent.shape[0] == 2 * groups * d and layer.rope_key.shape[0] == layer.key_up.shape[1] == layer.value_up.shape[1] == d
    layer.latent.copy_(torch.cat((source.key, source.value)))
    layer.latent_norm.fill_((layer.latent * source.attention_norm).square().sum(1).mean().sqrt())
    layer.rope_key.copy_(source.key[:d])
    eye = torch.eye(d)
    query = torch.zeros(heads, 2 * d, layer.query.shape[1])
    layer.key_up.zero_()
    layer.value_up.zero_()
    for head in range(heads):
        group = head * groups // heads
        rows = source.query[head * d : (head + 1) * d] * 2**0.5  # the scale is (2 d)^-0.5
        query[head, d:] = rows if group == 0 else 0
        query[head, :d] = 0 if group == 0 else rows
        layer.key_up[head, :, group * d : (group + 1) * d] = eye
        layer.value_up[head, :, (groups + group) * d : (groups + group + 1) * d] = eye
    layer.query.copy_(query.flatten(0, 1))


@torch.no_grad()
def look_near(model):
    """Begin look-quest with first-layer heads that see the token 1, 2, 3 ... before: looking far back is matching what
    stood there with what stands here, and to learn both at once takes much longer. Every token's first channel begins
    alike, from which these heads have constant queries and keys, turned so that rope makes their product greatest there."""
    sharpness = 10.0  # logit units; neighbours of the token meant get about half of this less
    layer, shape = model.layers[0], model.shape
    heads, groups, d = shape["n_heads"], shape["n_kv_heads"], shape["head_dim"]
    model.embedding[:, 0] = 1.0
    constant = (model.embedding.square().mean() ** -0.5).item()  # that channel after the norm
    size = (sharpness * d**0.5) ** 0.5 / constant
    layer.query.mul_(0.03)
    layer.key.mul_(0.03)
    layer.key.view(groups, d // 2, 2, -1)[..., 0, 0] = size
    cos, sin = rope_table(heads + 1, d, shape["rope_theta"], layer.query)
    query = layer.query.view(heads, d // 2, 2, -1)
    query[..., 0, 0], query[..., 1, 0] = size * cos[1:], -size * sin[1:]
    torch.nn.init.normal_(layer.attention_output, std=0.5 * layer.attention_output.shape[1] ** -0.5)
