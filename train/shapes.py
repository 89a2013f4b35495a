# SPDX-License-Identifier: Apache-2.0
"""The three models and how their training time is divided. TINY is the same at a scale for tests."""
import dataclasses

COMMON = dict(n_layers=6, embedding=256, ffn=1024, vocab=256, context=32768, norm_epsilon=1e-5, rope_theta=500000.0, n_heads=8)
GQA = dict(n_kv_heads=2, head_dim=32)
SHAPES = {
    "look-quest": dict(architecture="gqa_quest", **COMMON, **GQA, dense_layers=2, page_tokens=16, top_k=512),
    "look-nsa": dict(architecture="gqa_nsa", **COMMON, **GQA, compress_tokens=32, compress_stride=16, block_tokens=64,
                     n_blocks=8, n_first=1, n_local=2, window=256),
    "look-dsa": dict(architecture="mla_dsa", **COMMON, latent_dim=128, rope_dim=32, nope_dim=32, value_dim=32, index_heads=8,
                     index_dim=64, index_rope_dim=32, index_dtype="e4m3", top_k=512),
}
TINY_COMMON = dict(n_layers=3, embedding=32, ffn=48, vocab=256, context=512, norm_epsilon=1e-5, rope_theta=10000.0, n_heads=4)
TINY_GQA = dict(n_kv_heads=2, head_dim=8)
TINY_SHAPES = {
    "look-quest": dict(architecture="gqa_quest", **TINY_COMMON, **TINY_GQA, dense_layers=1, page_tokens=4, top_k=16),
    "look-nsa": dict(architecture="gqa_nsa", **TINY_COMMON, **TINY_GQA, compress_tokens=8, compress_stride=4, block_tokens=8,
                     n_blocks=4, n_first=1, n_local=2, window=16),
    "look-dsa": dict(architecture="mla_dsa", **TINY_COMMON, latent_dim=16, rope_dim=8, nope_dim=8, value_dim=12, index_heads=4,
                     index_dim=16, index_rope_dim=8, index_dtype="e4m3", top_k=16),
}


@dataclasses.dataclass
class Phase:
    until: float            # share of the training time at which it ends
    lengths: dict           # window length: share of steps
    mode: str = "dense"     # what attention sees: "dense" or "sparse"
    selector_loss: float = 0.0
    needles: float = 0.1    # share of sequences with needles


# 33,024 = 32,768 + 256: decoding after a full prompt stays inside trained positions; a multiple of 256 keeps masks aligned.
LONG = 33024
PHASES = {
    # Quest needs no training of its own: dense attention throughout.
    "look-quest": [Phase(0.30, {2048: 1.0}), Phase(0.55, {4096: 1.0}), Phase(0.75, {8192: 1.0}, needles=0.15),
                   Phase(1.0, {LONG: 0.75, 4096: 0.25}, needles=0.25)],
    # NSA is sparse from the first step. The masked product costs as much as dense attention without its causal half,
    # so more of the time goes to short windows, which teach most a second.
    "look-nsa": [Phase(0.40, {2048: 1.0}, "sparse", 0.2), Phase(0.62, {4096: 1.0}, "sparse", 0.2),
                 Phase(0.80, {8192: 1.0}, "sparse", 0.2, 0.15), Phase(1.0, {LONG: 0.75, 4096: 0.25}, "sparse", 0.2, 0.25)],
    # DSA: dense, with the indexer learning beside it from the second phase on; then sparse (DeepSeek-V3.2, section 2).
    "look-dsa": [Phase(0.25, {2048: 1.0}), Phase(0.45, {4096: 1.0}, "dense", 1.0), Phase(0.58, {8192: 1.0}, "dense", 1.0, 0.15),
                 Phase(0.78, {LONG: 0.75, 4096: 0.25}, "dense", 1.0, 0.25), Phase(0.88, {8192: 1.0}, "sparse", 1.0, 0.2),
                 Phase(1.0, {LONG: 0.5, 8192: 0.5}, "sparse", 1.0, 0.25)],
}


def tiny_phases(name):
    """The same phases over short windows."""
    lengths = {2048: 256, 4096: 320, 8192: 384, LONG: 512}
    return [dataclasses.replace(phase, lengths={lengths[n]: share for n, share in phase.lengths.items()}, needles=0.5)
            for phase in PHASES[name]]


# Tokens a step. By estimate, activations of one layer are about 30 KB a token (gate, up, silu and product 8 KB, the rest norms, rope
# and attention), so 65,536 tokens in 6 layers are 12 GB; three models share 140 GB. At 2 K the step is 35 MFLOP a token
# of matrices and 22 of attention, at 33 K 350 of attention.
STEP_TOKENS = 65536
# Tokens that go through the model at a time. A sparse layer keeps its mask for the backward pass: length^2 / 2 * 2 bytes a
# sequence (NSA: twice, one for each KV head), 1.1 GB and 2.2 GB at 33 K, so 7 and 13 GB for six layers.
MICRO_TOKENS = {"dense": 66048, "sparse": 33024}
