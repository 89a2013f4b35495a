#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DSA selection and MLA attention of libhisparse_ops against the modules of transformers, in TAP.

usage: reference_transformers.py BUILD_DIR     skipped without torch or a transformers that has deepseek_v32

DeepseekV32Attention and GlmMoeDsaAttention get small random weights and run in float64. Their indexer's queries, keys and weights,
after norm and rope, are what the library is given; it transforms and packs them itself. On a machine with a GPU the functions of
libhisparse_ops_cuda get the same.

Selections. The modules score without the transform and without packing, so the library's choice may turn where scores are close. A
product of a packed key and a packed query is off by at most f = 2^-8 of itself in bf16 (two roundings of 2^-9), 2^-3 in e4m3. With
S = sum_j |w_j| sum_c |q_c k_c|, over transformed channels, no token left out may have a score above that of one taken by more than
SHARE f S of the two together: roundings fall either way, and what is asked for is a few times what comes out.

Attention. The module's output must be that of the formula with the query absorbed, in float64, to 1e-6 of its greatest (its norms and
its softmax are float32): that ties what is compared next to the module. The library reads the module's own selection out of rows of 1152
and 656 bytes. A number of a row is off by up to f = 2^-9 of itself in bf16, 2^-4 in e4m3; scores add such errors up and weights carry them to
the output. Of all channels, heads and queries together the root mean square of the difference may be ATTENTION f times that of the
output. (That the arithmetic behind the rows is right to float32 is what reference_mla.py shows.)
"""
import ctypes
import os
import sys

try:
    import torch
    from transformers.models.deepseek_v32 import configuration_deepseek_v32 as v32_config, modeling_deepseek_v32 as v32
    from transformers.models.glm_moe_dsa import configuration_glm_moe_dsa as glm_config, modeling_glm_moe_dsa as glm
except ImportError:
    print("1..1\nok 1 - DSA and MLA against transformers # SKIP torch or transformers with deepseek_v32 is missing")
    sys.exit(0)

BF16, E4M3 = 2, 3
DTYPES = {"bf16": (BF16, 2.0**-8), "e4m3": (E4M3, 2.0**-3)}
FORMATS = {"bf16": (0, 1152, 2.0**-9), "fp8": (1, 656, 2.0**-4)}
SHARE, ATTENTION = 0.05, 4.0
TOKENS, PROBES, TOP_K = 900, 48, 256
I32, SIZE = ctypes.c_int32, ctypes.c_size_t


class DsaShape(ctypes.Structure):
    _fields_ = [("struct_size", SIZE), ("n_heads", I32), ("head_dim", I32), ("dtype", I32), ("reserved", I32)]


class MlaShape(ctypes.Structure):
    _fields_ = [("struct_size", SIZE), ("n_heads", I32), ("latent_dim", I32), ("rope_dim", I32), ("format", I32), ("scale", ctypes.c_float),
                ("reserved", I32)]


class Plane(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("row_bytes", SIZE), ("row_stride", SIZE), ("block_stride", SIZE), ("rows_per_block", I32), ("reserved", I32)]


class Batch(ctypes.Structure):
    _fields_ = [("struct_size", SIZE), ("batch", I32), ("n_queries", I32), ("max_tokens", I32), ("slot", ctypes.c_void_p), ("n_tokens", ctypes.c_void_p)]


def sized(structure, *fields):
    return structure(ctypes.sizeof(structure), *fields)


class Address(ctypes.c_void_p):
    """Of a tensor, which lives as long."""


def at(tensor):
    assert tensor.is_contiguous()
    address = Address(tensor.data_ptr())
    address.tensor = tensor
    return address


def call(function, *arguments):
    status = function(*arguments)
    if status != 0:
        raise RuntimeError("%s: status %d" % (function.__name__, status))


def bytes_of(function, shape, *arguments):
    size = SIZE()
    call(function, ctypes.byref(shape), *arguments, ctypes.byref(size))
    return size.value


# ---------------------------------------------------------------------------------------------------------------- modules --


def small(config_class, index_heads):
    return config_class(vocab_size=32, hidden_size=192, intermediate_size=64, moe_intermediate_size=32, num_hidden_layers=1, num_attention_heads=16,
                        num_key_value_heads=16, n_routed_experts=2, n_shared_experts=1, num_experts_per_tok=1, n_group=1, topk_group=1,
                        first_k_dense_replace=1, kv_lora_rank=512, q_lora_rank=128, qk_rope_head_dim=64, v_head_dim=64, qk_nope_head_dim=96,
                        index_topk=TOP_K, index_head_dim=128, index_n_heads=index_heads, max_position_embeddings=2048,
                        attn_implementation="eager")


class Problem:
    """One module, its input, what it chose and gave out, and what the library needs to do the same."""

    def __init__(self, name, code, index_rope, config, attention, rotary):
        torch.manual_seed(7)
        self.name, self.module = name, attention(config, 0).double()
        for parameter in self.module.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=1.5 * parameter.shape[1]**-0.5)
        hidden = torch.randn(1, TOKENS, config.hidden_size, dtype=torch.float64)
        cos, sin = (x.double() for x in rotary(config)(hidden.float(), torch.arange(TOKENS)[None]))
        mask = torch.full((TOKENS, TOKENS), float("-inf"), dtype=torch.float64).triu(1)[None, None]
        with torch.no_grad():
            chosen = []
            handle = self.module.indexer.register_forward_hook(lambda m, i, o: chosen.append(o))
            self.output = self.module(hidden, (cos, sin), mask)[0][0]
            handle.remove()
            self.chosen = chosen[0][0].long()
            self.read_indexer(index_rope, hidden, cos, sin)
            self.read_attention(code, hidden, cos, sin)
        self.probes = range(TOKENS - PROBES, TOKENS)

    def read_indexer(self, index_rope, hidden, cos, sin):
        m, rope = self.module.indexer, self.module.qk_rope_head_dim
        query = m.wq_b(self.module.q_a_layernorm(self.module.q_a_proj(hidden))).view(1, TOKENS, m.n_heads, m.head_dim)
        key = m.k_norm(m.wk(hidden)).unsqueeze(2)
        turned, turned_key = index_rope(query[..., :rope], key[..., :rope], cos, sin, unsqueeze_dim=2)
        self.index_query = torch.cat([turned, query[..., rope:]], -1)[0].float()
        self.index_key = torch.cat([turned_key, key[..., rope:]], -1)[0, :, 0].float()
        self.index_weight = m.weights_proj(hidden)[0].float()

    def read_attention(self, code, hidden, cos, sin):
        m = self.module
        heads, nope, latent = m.num_heads, m.qk_nope_head_dim, m.kv_lora_rank
        query = m.q_b_proj(m.q_a_layernorm(m.q_a_proj(hidden))).view(1, TOKENS, heads, -1).transpose(1, 2)
        packed = m.kv_a_proj_with_mqa(hidden)
        turned, key = code.apply_rotary_pos_emb_interleave(query[..., nope:], packed[:, None, :, latent:], cos, sin)
        up = m.kv_b_proj.weight.view(heads, nope + m.v_head_dim, latent)
        self.value_up = up[:, nope:]
        absorbed = torch.einsum("htn,hnl->thl", query[0, :, :, :nope], up[:, :nope])
        self.query = torch.cat([absorbed, turned[0].transpose(0, 1)], -1)
        self.row = torch.cat([m.kv_a_layernorm(packed[0, :, :latent]), key[0, 0]], -1)

    def latent_of(self, t):
        """Attention of query t in float64: [heads][latent]."""
        row = self.row[self.chosen[t]]
        weight = torch.softmax(self.query[t] @ row.T * self.module.scaling, -1)
        return weight @ row[:, :self.module.kv_lora_rank]

    def output_of(self, latent):
        return self.module.o_proj(torch.einsum("hl,hvl->hv", latent, self.value_up).reshape(-1))


# ---------------------------------------------------------------------------------------------------------------- library --


class Cpu:
    name = "cpu"

    def __init__(self, build):
        self.lib = ctypes.CDLL(os.path.join(build, "lib", "libhisparse_ops.so"))

    def select(self, p, dtype):
        heads, dim = p.index_query.shape[1:]
        shape = sized(DsaShape, heads, dim, dtype, 0)
        stride = bytes_of(self.lib.hsp_dsa_key_bytes, shape)
        rows = torch.zeros(TOKENS * stride, dtype=torch.uint8)
        query = torch.zeros(bytes_of(self.lib.hsp_dsa_query_bytes, shape) // 4 + 16)
        call(self.lib.hsp_dsa_pack_keys, ctypes.byref(shape), at(p.index_key), SIZE(4 * dim), I32(TOKENS), at(rows), SIZE(stride))
        selections = []
        for t in p.probes:
            out = torch.zeros(TOP_K, dtype=torch.int32)
            scratch = torch.zeros(bytes_of(self.lib.hsp_dsa_scratch, shape, I32(t + 1)) // 4 + 16)
            call(self.lib.hsp_dsa_pack_query, ctypes.byref(shape), at(p.index_query[t].contiguous()), at(p.index_weight[t].contiguous()), at(query))
            call(self.lib.hsp_dsa_select, ctypes.byref(shape), at(rows), SIZE(stride), I32(t + 1), at(query), I32(TOP_K), at(out), at(scratch))
            selections.append(out.long())
        return torch.stack(selections)

    def pack_rows(self, p, form, size):
        shape = sized(MlaShape, p.query.shape[1], 512, 64, form, p.module.scaling, 0)
        rows = torch.zeros(TOKENS * size, dtype=torch.uint8)
        plane = Plane(rows.data_ptr(), size, size, size, 1, 0)
        call(self.lib.hsp_mla_pack_rows, ctypes.byref(shape), at(p.row.float()), I32(0), I32(TOKENS), ctypes.byref(plane))
        return shape, rows

    def attend(self, p, form, size):
        shape, rows = self.pack_rows(p, form, size)
        plane = Plane(rows.data_ptr(), size, size, size, 1, 0)
        query = p.query[list(p.probes)].float().contiguous()
        ids = p.chosen[list(p.probes)].int().contiguous()
        out = torch.zeros(PROBES, query.shape[1], 512)
        scratch = torch.zeros(bytes_of(self.lib.hsp_mla_scratch, shape, I32(TOP_K)) // 4 + 16)
        call(self.lib.hsp_mla_attend, ctypes.byref(shape), ctypes.byref(plane), at(query), at(ids), I32(PROBES), I32(TOP_K), None, at(out), None,
             at(scratch))
        return out.double()


class Gpu:
    """One entry of the batch a probe, all of request slot 0."""
    name = "cuda"

    def __init__(self, build):
        self.lib = ctypes.CDLL(os.path.join(build, "lib", "libhisparse_ops_cuda.so"))
        self.cpu = Cpu(build)

    def batch(self, p):
        self.kept = (torch.zeros(PROBES, dtype=torch.int32, device="cuda"), torch.tensor([t + 1 for t in p.probes], dtype=torch.int32, device="cuda"))
        return sized(Batch, PROBES, 1, TOKENS, self.kept[0].data_ptr(), self.kept[1].data_ptr())

    def select(self, p, dtype):
        heads, dim = p.index_query.shape[1:]
        shape, batch = sized(DsaShape, heads, dim, dtype, 0), self.batch(p)
        stride = bytes_of(self.cpu.lib.hsp_dsa_key_bytes, shape)
        rows = torch.zeros(TOKENS * stride + 64, dtype=torch.uint8, device="cuda")
        zero, all_tokens = torch.zeros(1, dtype=torch.int32, device="cuda"), torch.full((1,), TOKENS, dtype=torch.int32, device="cuda")
        prompt = sized(Batch, 1, 1, TOKENS, zero.data_ptr(), all_tokens.data_ptr())
        keys, probes = p.index_key.cuda(), list(p.probes)
        call(self.lib.hsp_gpu_dsa_pack_keys, ctypes.byref(shape), ctypes.byref(prompt), at(keys), I32(TOKENS), at(rows), ctypes.c_uint64(TOKENS * stride),
             ctypes.c_uint64(stride), None)
        query, weight = p.index_query[probes].cuda().contiguous(), p.index_weight[probes].cuda().contiguous()
        packed = torch.zeros(PROBES * bytes_of(self.lib.hsp_gpu_dsa_query_bytes, shape) // 4 + 16, device="cuda")
        call(self.lib.hsp_gpu_dsa_pack_query, ctypes.byref(shape), ctypes.byref(batch), at(query), at(weight), at(packed), None)
        scratch = torch.zeros(bytes_of(self.lib.hsp_gpu_dsa_scratch, shape, I32(PROBES), I32(1), I32(TOKENS)) // 4 + 16, device="cuda")
        out = torch.zeros(PROBES, TOP_K, dtype=torch.int32, device="cuda")
        call(self.lib.hsp_gpu_dsa_select, ctypes.byref(shape), ctypes.byref(batch), at(rows), ctypes.c_uint64(TOKENS * stride), ctypes.c_uint64(stride),
             at(packed), I32(TOP_K), at(out), at(scratch), None)
        torch.cuda.synchronize()
        return out.cpu().long()

    def attend(self, p, form, size):
        shape, rows = self.cpu.pack_rows(p, form, size)
        rows, batch, probes = rows.cuda(), self.batch(p), list(p.probes)
        plane = Plane(rows.data_ptr(), size, size, size, 1, 0)
        query, ids = p.query[probes].float().cuda().contiguous(), p.chosen[probes].int().cuda().contiguous()
        out = torch.zeros(PROBES, query.shape[1], 512, device="cuda")
        call(self.lib.hsp_gpu_mla_attend, ctypes.byref(shape), ctypes.byref(plane), ctypes.byref(batch), at(query), at(ids), I32(TOP_K), I32(2), None,
             at(out), None, None)
        torch.cuda.synchronize()
        return out.cpu().double()


# ----------------------------------------------------------------------------------------------------------------- checks --


def hadamard(dim):
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < dim:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / dim**0.5


def check_selection(p, library, dtype, error):
    """Worst share of the bound by which a token left out beats one taken; how many tokens differ."""
    turn = hadamard(p.index_key.shape[1])
    keys, worst, different = p.index_key.double() @ turn, 0.0, 0
    for t, ours in zip(p.probes, library.select(p, dtype)):
        assert (ours[1:] > ours[:-1]).all() and ours[0] >= 0 and ours[-1] <= t
        products = (p.index_query[t].double() @ turn) @ keys[:t + 1].T
        weight = p.index_weight[t].double() * (p.index_query.shape[1] * p.index_key.shape[1])**-0.5
        scores = weight @ torch.relu(products)
        bound = error * (weight.abs() @ ((p.index_query[t].double() @ turn).abs() @ keys[:t + 1].abs().T))
        taken = torch.zeros(t + 1, dtype=torch.bool)
        taken[ours] = True
        theirs = torch.zeros(t + 1, dtype=torch.bool)
        theirs[p.chosen[t]] = True
        different += int((taken & ~theirs).sum())
        gap = scores[~taken][:, None] - scores[taken][None]
        worst = max(worst, float((gap / (bound[~taken][:, None] + bound[taken][None])).max()))
    return worst, different


def check_attention(p, library, form, size, error):
    """Root mean square of the difference over that of the output, in units of `error`."""
    want = torch.stack([p.latent_of(t) for t in p.probes])
    return float((library.attend(p, form, size) - want).square().mean().sqrt() / want.square().mean().sqrt()) / error


def main():
    build = sys.argv[1]
    problems = [
        Problem("deepseek_v32", v32, v32.apply_rotary_pos_emb, small(v32_config.DeepseekV32Config, 64), v32.DeepseekV32Attention,
                v32.DeepseekV32RotaryEmbedding),
        # its indexer turns interleaved pairs, as its attention does
        Problem("glm_moe_dsa", glm, glm.apply_rotary_pos_emb_interleave, small(glm_config.GlmMoeDsaConfig, 32), glm.GlmMoeDsaAttention,
                glm.GlmMoeDsaRotaryEmbedding)]
    libraries = [Cpu(build)]
    if torch.cuda.is_available() and os.path.exists(os.path.join(build, "lib", "libhisparse_ops_cuda.so")):
        libraries.append(Gpu(build))
    number = 0

    def say(ok, what):
        nonlocal number
        number += 1
        print("%s %d - %s" % ("ok" if ok else "not ok", number, what))

    with torch.no_grad():
        for p in problems:
            error = max(float((p.output_of(p.latent_of(t)) - p.output[t]).abs().max() / p.output[t].abs().max()) for t in p.probes)
            say(error < 1e-6, "%s: the module is the formula (%.1e)" % (p.name, error))
            for library in libraries:
                for name, (dtype, bound) in DTYPES.items():
                    worst, different = check_selection(p, library, dtype, bound)
                    say(worst <= SHARE, "%s on %s, %s keys: %.4f of the bound, %d of %d tokens differ" % (p.name, library.name, name, worst, different,
                                                                                                  PROBES * TOP_K))
                for name, (form, size, bound) in FORMATS.items():
                    off = check_attention(p, library, form, size, bound)
                    say(off <= ATTENTION, "%s on %s, %s rows: off by %.2f of a rounding, %.2f%% of the output" % (p.name, library.name, name, off,
                                                                                                            100 * off * bound))
    print("1..%d" % number)


if __name__ == "__main__":
    main()
