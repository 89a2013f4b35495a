# SPDX-License-Identifier: Apache-2.0
"""Dense attention in kernels without masks, for training. Rows are [tokens of all sequences][heads][channels].

Which kernel is quickest differs by shape, so on a GPU the candidates for each shape are compared when it first comes, with
each other's results and by the clock."""
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from attention_nsa import window_attention

chosen, report = {}, []
AGREE = 0.03  # of the greatest number: two roundings to bf16 and another order of sums


def heads_second(x, batch):
    return x.unflatten(0, (batch, -1)).transpose(1, 2)


def tokens_first(x):
    return x.transpose(1, 2).flatten(0, 1)


def backend(which):
    def attend(q, k, v, scale):
        with sdpa_kernel(which):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    return attend


def flash_window(window):
    def attend(q, k, v, scale):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return torch.ops.aten._flash_attention_forward(q, k, v, None, None, q.shape[1], k.shape[1], 0.0, True, False, scale=scale,
                                                       window_size_left=window - 1, window_size_right=0)[0].transpose(1, 2)
    return attend


CAUSAL = {"flash": backend(SDPBackend.FLASH_ATTENTION), "cudnn": backend(SDPBackend.CUDNN_ATTENTION),
          "efficient": backend(SDPBackend.EFFICIENT_ATTENTION)}


def leave_out(name):
    """Choose anew without one candidate; False if it was out."""
    chosen.clear()
    return CAUSAL.pop(name, None) is not None


def trial(attend, inputs, scale):
    """Output and gradients, and seconds of a forward and backward pass."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    for _ in range(3):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        out = attend(*inputs, scale)
        gradients = torch.autograd.grad(out, inputs, inputs[0].detach())
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
    return [out.detach(), *gradients], seconds


def agree(a, b):
    return all(bool((x - y).abs().max() <= AGREE * y.abs().max() + 1e-6) for x, y in zip(a, b))


def quickest(key, candidates, inputs, scale):
    """The quickest candidate that agrees with the first that works; the first is the one to trust."""
    if key not in chosen:
        first, best, entry = None, None, {"attention": str(key)}
        with torch.enable_grad():
            for name, attend in candidates.items():
                try:
                    found, seconds = trial(attend, inputs, scale)
                except RuntimeError as error:
                    entry[name] = str(error)[:100]
                    continue
                entry[name] = round(seconds * 1e3, 3)
                if first is not None and not agree(found, first):
                    entry[name] = "disagrees"
                    continue
                first = found if first is None else first
                if best is None or seconds < best[0]:
                    best = seconds, attend
        chosen[key] = best[1]
        report.append(entry)
    return chosen[key]


def causal_heads(q, k, v, scale):
    if not q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    return quickest(("causal", *q.shape), CAUSAL, (q, k, v), scale)(q, k, v, scale)


def causal(q, k, v, batch, scale):
    return tokens_first(causal_heads(*(heads_second(x, batch) for x in (q, k, v)), scale))


def window(q, k, v, batch, scale, window):
    q, k, v = (heads_second(x, batch) for x in (q, k, v))
    masked = lambda q, k, v, scale: window_attention(q, k, v, scale, window)
    if not q.is_cuda:
        return tokens_first(masked(q, k, v, scale))
    candidates = {"masked": masked, "flash": flash_window(window)}
    return tokens_first(quickest(("window", *q.shape), candidates, (q, k, v), scale)(q, k, v, scale))


def compressed(q, keys, values, batch, scale, span, stride):
    """Attention to compressed rows [batch][rows][KV heads][channels] whose last token is there; zeros where none is.

    A query at position p with p + 1 = stride * a + r sees rows 0 .. a - span / stride, whatever r: for each r, queries and
    rows make a causal square. The stride values of r stand where heads do."""
    n_rows, heads = keys.shape[1], q.shape[1]
    q = q.unflatten(0, (batch, -1))
    if n_rows == 0:
        return torch.zeros_like(q).flatten(0, 1)
    length = q.shape[1]
    square = F.pad(q[:, span - 1 :], (0, 0, 0, 0, 0, stride - 1)).unflatten(1, (n_rows, stride)).flatten(2, 3)
    rows = lambda x: (x[:, :, None, :, None].expand(-1, -1, stride, -1, heads // x.shape[2], -1)
                      .reshape(batch, n_rows, stride * heads, x.shape[3]).transpose(1, 2))
    out = causal_heads(square.transpose(1, 2), rows(keys), rows(values), scale).transpose(1, 2)
    out = out.unflatten(2, (stride, heads)).flatten(1, 2)[:, : length - span + 1]
    return F.pad(out, (0, 0, 0, 0, span - 1, 0)).flatten(0, 1)
