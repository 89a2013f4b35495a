# SPDX-License-Identifier: Apache-2.0
"""Parts that the three models share: rope, rounding, exact top-k, causal and masked attention."""
import torch
import torch.nn.functional as F

# Elements of a mask or of scores made at a time; 2^28 are 512 MB in bf16.
MASK_ELEMENTS = 1 << 28


def prepare_gpu():
    """Less than half of the GPU's memory for this process: two train side by side, and each should run out of its own.
    Unless asked for by name, no cuDNN attention: every shape of every piece would cost it a plan."""
    torch.set_num_threads(4)
    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(0.45)
        torch.backends.cuda.enable_cudnn_sdp(False)


def rope_table(n, channels, theta, like):
    """cos and sin [n][channels / 2], made in float64: at position 33,000 a float32 angle is off by 0.002."""
    rate = theta ** (-torch.arange(0, channels, 2, dtype=torch.float64, device=like.device) / channels)
    angle = torch.arange(n, dtype=torch.float64, device=like.device)[:, None] * rate
    return angle.cos().to(like.dtype), angle.sin().to(like.dtype)


def rope_pairs(x, table):
    """Rotate pairs (2i, 2i + 1) of x [..., tokens, channels]."""
    cos, sin = table
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def rope_halves(x, table, channels):
    """Rotate pairs (i, i + channels / 2) of the first channels of x."""
    cos, sin = table
    a, b = x[..., : channels // 2], x[..., channels // 2 : channels]
    return torch.cat((a * cos - b * sin, a * sin + b * cos, x[..., channels:]), -1)


def round_bf16(x):
    """What a bf16 cache keeps of x."""
    return x.bfloat16().to(x.dtype)


def hadamard(channels, like):
    index = torch.arange(channels, device=like.device)
    bits = index[:, None] & index
    parity = sum((bits >> i) & 1 for i in range(channels.bit_length())) & 1
    return (1 - 2 * parity).to(like.dtype) * channels**-0.5


def pack_index(x, dtype):
    """What a packed index key or query keeps of x; the gradient passes as if nothing was rounded."""
    y = x.detach()
    if dtype == "bf16":
        packed = round_bf16(y)
    else:
        ratio = y.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448
        mantissa, _ = torch.frexp(ratio)  # ratio = mantissa * 2^exponent, 0.5 <= mantissa < 1
        scale = torch.where(mantissa == 0.5, ratio, ratio / mantissa)  # exact, which a power function need not be
        packed = (y / scale).to(torch.float8_e4m3fn).to(y.dtype) * scale
    return x + (packed - y)


def top_mask(scores, k, allowed):
    """The k greatest allowed scores of every row, ties to the lower index, as a bool mask."""
    if scores.shape[-1] <= k:
        return allowed.expand(scores.shape)
    scores = scores.masked_fill(~allowed, float("-inf"))
    kth = scores.topk(k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    above, equal = scores > kth, scores == kth
    wanted = k - above.sum(-1, keepdim=True, dtype=torch.int32)
    return (above | (equal & (equal.cumsum(-1, dtype=torch.int32) <= wanted))) & allowed


def rows_at(x, positions):
    """Rows of x [batch][heads][tokens][channels] at positions [batch or 1][n]."""
    index = positions[:, None, :, None].expand(x.shape[0], x.shape[1], -1, x.shape[3])
    return x.gather(2, index)


def attention_dtype(x):
    """bf16 on a GPU, where flash and memory-efficient kernels need it or are twice as fast; elsewhere as it comes."""
    return torch.bfloat16 if x.is_cuda else x.dtype


def causal_attention(q, k, v, scale):
    """Dense causal attention. k, v: [batch][KV heads][tokens][channels]."""
    dtype, repeat, channels = attention_dtype(q), q.shape[1] // k.shape[1], v.shape[3]
    k, v = (x.to(dtype).repeat_interleave(repeat, 1) for x in (k, v))
    if channels != q.shape[3] and q.is_cuda:  # flash wants values as wide as keys
        v = F.pad(v, (0, q.shape[3] - channels))
    out = F.scaled_dot_product_attention(q.to(dtype), k, v, is_causal=True, scale=scale)
    return out[..., :channels].to(q.dtype)


def masked_attention(q, k, v, scale, select):
    """Attention to what select(start, end) names: bool [batch][1 or KV heads][end - start][end].

    Queries go in pieces so that neither the mask nor the half above the diagonal is whole in memory."""
    dtype, given = attention_dtype(q), q.dtype
    batch, heads, n, _ = q.shape
    groups = k.shape[1]
    fold = lambda x: x.reshape(batch * groups, -1, x.shape[2], x.shape[3])
    spread = lambda x: fold(x).expand(-1, heads // groups, -1, -1)
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    a_query = batch * n * (1 if groups == heads else groups)  # elements of the mask of one query
    rows = max(64, min(n // 2, MASK_ELEMENTS // a_query) // 64 * 64)
    pieces = []
    for start in range(0, n, rows):
        end = min(start + rows, n)
        mask = select(start, end)
        if groups == heads:  # one mask for all heads
            piece = F.scaled_dot_product_attention(q[:, :, start:end], k[:, :, :end], v[:, :, :end], mask, scale=scale)
        else:
            mask = mask.expand(batch, groups, -1, -1).reshape(batch * groups, 1, end - start, end)
            piece = F.scaled_dot_product_attention(fold(q[:, :, start:end]), spread(k[:, :, :end]), spread(v[:, :, :end]),
                                                   mask, scale=scale)
        pieces.append(piece.reshape(batch, heads, end - start, v.shape[3]))
    return torch.cat(pieces, 2).to(given)


def attention_weights(q, k, positions, scale):
    """Softmax of the queries at positions [batch][n] over all tokens up to theirs, float: [batch][heads][n][tokens].
    No gradient: targets and measurements."""
    with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
        dtype = attention_dtype(q)
        k = k.to(dtype).repeat_interleave(q.shape[1] // k.shape[1], 1)
        scores = (q.to(dtype) @ k.transpose(2, 3)).to(torch.promote_types(q.dtype, torch.float32)) * scale
        later = torch.arange(k.shape[2], device=q.device) > positions[:, None, :, None]
        return scores.masked_fill_(later, float("-inf")).softmax(-1)
