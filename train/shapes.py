# SPDX-License-Identifier: Apache-2.0
"""The three models and how their training time is divided. TINY is the same at a scale for tests."""
import dataclasses

COMMON = dict(n_layers=6, embedding=256, ffn=1024, vocab=256, context=32768, norm_epsilon=1e-5, rope_theta=500000.0, n_heads=8)
GQA = dict(n_kv_heads=2, head_dim=32)
SHAPES = {
    "look-quest": dict(architecture="gqa_quest", **COMMON, **GQA, dense_layers=2, page_tokens=4, top_k=2048),
    "look-nsa": dict(architecture="gqa_nsa", **COMMON, **GQA, compress_tokens=32, compress_stride=16, block_tokens=64,
                     n_blocks=16, n_first=1, n_local=2, window=256),
    "look-dsa": dict(architecture="mla_dsa", **COMMON, latent_dim=128, rope_dim=32, nope_dim=32, value_dim=32, index_heads=8,
                     index_dim=64, index_rope_dim=32, index_dtype="e4m3", top_k=512),
}
TINY_COMMON = dict(n_layers=3, embedding=32, ffn=48, vocab=256, context=576, norm_epsilon=1e-5, rope_theta=10000.0, n_heads=4)
TINY_GQA = dict(n_kv_heads=2, head_dim=8)
TINY_SHAPES = {
    "look-quest": dict(architecture="gqa_quest", **TINY_COMMON, **TINY_GQA, dense_layers=1, page_tokens=4, top_k=16),
    "look-nsa": dict(architecture="gqa_nsa", **TINY_COMMON, **TINY_GQA, compress_tokens=8, compress_stride=4, block_tokens=8,
                     n_blocks=4, n_first=1, n_local=2, window=16),
    "look-dsa": dict(architecture="mla_dsa", **TINY_COMMON, latent_dim=32, rope_dim=8, nope_dim=8, value_dim=8, index_heads=4,
                     index_dim=16, index_rope_dim=8, index_dtype="e4m3", top_k=16),
}


@dataclasses.dataclass
class Phase:
    until: float            # share of the training time at which it ends
    lengths: dict           # window length: share of steps
    mode: str = "dense"     # what attention sees: "dense" or "sparse"
    selector_loss: float = 0.0
    selector_every: int = 4  # steps
    needles: float = 0.25   # share of windows with needles
    repeats: float = 0.25   # share of windows with repeated pieces


# Tokens of a step, whatever the window: 33,024 = 256 * 129 = 32,768 + 256. Decoding after a full prompt so stays inside trained
# positions, and all windows are multiples of 48 that divide it, as the compressed branch (16) wants.
STEP_TOKENS = LONG = 33024
LATE = dict(needles=0.4, repeats=0.15)
PHASES = {
    # Looking back is learned in short windows, where steps are many; long ones then only stretch it. Quest needs no
    # training of its own: dense attention throughout.
    "look-quest": [Phase(0.12, {192: 1.0}, repeats=0.5), Phase(0.38, {768: 1.0}, repeats=0.35), Phase(0.60, {2064: 1.0}), Phase(0.78, {8256: 1.0}, **LATE),
                   Phase(1.0, {LONG: 0.5, 2064: 0.5}, **LATE)],
    # The others begin from look-quest. NSA: first with all tokens in the selected branch, which costs far less than its
    # masks, while the compressed keys learn to find what attention weighs; then sparse.
    "look-nsa": [Phase(0.20, {2064: 1.0}, selector_loss=0.2), Phase(0.42, {8256: 1.0}, selector_loss=0.2, **LATE),
                 Phase(0.66, {LONG: 0.5, 2064: 0.5}, selector_loss=0.2, **LATE),
                 Phase(0.85, {8256: 1.0}, "sparse", 0.2, 2, **LATE), Phase(1.0, {LONG: 0.4, 8256: 0.6}, "sparse", 0.2, 2, **LATE)],
    # DSA: dense, with the indexer learning beside it; then sparse (DeepSeek-V3.2, section 2).
    "look-dsa": [Phase(0.20, {768: 1.0}), Phase(0.38, {2064: 1.0}, selector_loss=1.0, selector_every=2),
                 Phase(0.55, {8256: 1.0}, selector_loss=1.0, selector_every=2, **LATE),
                 Phase(0.80, {LONG: 0.5, 2064: 0.5}, selector_loss=1.0, selector_every=2, **LATE),
                 Phase(0.92, {8256: 1.0}, "sparse", 1.0, 2, **LATE), Phase(1.0, {LONG: 0.4, 8256: 0.6}, "sparse", 1.0, 2, **LATE)],
}
# Going on from a model of the same kind: long windows, most of all for the sparse arithmetic.
GOING_ON = [Phase(0.5, {LONG: 0.5, 8256: 0.5}, selector_loss=0.2, needles=0.5, repeats=0.1),
            Phase(0.7, {8256: 1.0}, "sparse", 0.2, 2, needles=0.5, repeats=0.1),
            Phase(1.0, {LONG: 0.8, 8256: 0.2}, "sparse", 0.2, 2, needles=0.5, repeats=0.1)]
# Beginning from a trained model, with rates at which it forgets less.
RATE = {"look-quest": 1.0, "look-nsa": 0.6, "look-dsa": 0.8}


def tiny_phases(phases):
    """The same phases over short windows."""
    lengths = {192: 48, 768: 96, 2064: 192, 8256: 288, LONG: 576}
    return [dataclasses.replace(phase, lengths={lengths[n]: share for n, share in phase.lengths.items()}, needles=0.5)
            for phase in phases]


TINY_STEP_TOKENS = 1152
