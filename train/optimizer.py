# SPDX-License-Identifier: Apache-2.0
"""Muon for the matrices inside layers, AdamW for the rest: the quickest start known for models of this size."""
import torch

MUON_RATE, MUON_MOMENTUM, DECAY = 0.02, 0.95, 0.03
RATES = {"embedding": 0.01, "index_": 0.002, "": 0.003}  # AdamW: the first name found in the parameter's
BETAS, EPSILON, CLIP = (0.9, 0.95), 1e-10, 1.0
ADAM_NAMES = ("norm", "index_", "compress_", "branch_gate")


def orthogonal(x, steps=5):
    """Newton-Schulz iteration of Muon (Jordan, 2024) on a stack of matrices: singular values go to about 1."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = x.bfloat16() if x.is_cuda else x
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon:
    """Matrices of one shape are updated as one stack, so that a step costs few launches."""

    def __init__(self, parameters):
        groups = {}
        for parameter in parameters:
            groups.setdefault((parameter.numel() // parameter.shape[-1], parameter.shape[-1]), []).append(parameter)
        self.groups = [(members, torch.zeros(len(members), *shape, device=members[0].device))
                       for shape, members in groups.items()]

    @torch.no_grad()
    def step(self, scale):
        for members, momentum in self.groups:
            gradient = torch.stack([p.grad.view(momentum.shape[1:]) for p in members])
            momentum.lerp_(gradient, 1 - MUON_MOMENTUM)
            update = orthogonal(gradient.lerp(momentum, MUON_MOMENTUM)).float()
            update *= max(1.0, update.shape[-2] / update.shape[-1]) ** 0.5 * MUON_RATE * scale
            torch._foreach_mul_(members, 1 - MUON_RATE * scale * DECAY)
            torch._foreach_sub_(members, [u.view_as(p) for u, p in zip(update, members)])


class Optimizer:
    def __init__(self, model):
        named = dict(model.named_parameters())
        is_matrix = lambda name, p: name.startswith("layers.") and p.dim() >= 2 and not any(key in name for key in ADAM_NAMES)
        self.parameters = list(named.values())
        self.muon = Muon([p for name, p in named.items() if is_matrix(name, p)])
        groups = {}
        for name, p in named.items():
            if not is_matrix(name, p):
                groups.setdefault(next(rate for key, rate in RATES.items() if key in name), []).append(p)
        self.adam = torch.optim.AdamW([{"params": ps, "base": rate} for rate, ps in groups.items()], lr=0.0, betas=BETAS,
                                      eps=EPSILON, weight_decay=0.0, fused=self.parameters[0].is_cuda)

    def zero(self):
        for p in self.parameters:
            p.grad = None

    def step(self, scale):
        """One update; scale multiplies all learning rates. Parameters without a gradient (an indexer before its phase)
        stay; a gradient that is not finite counts as none."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        factor = torch.where(norm.isfinite(), (CLIP / (norm + 1e-6)).clamp(max=1.0), 0.0)
        for gradient in gradients:
            gradient.nan_to_num_(0.0, 0.0, 0.0)
        torch._foreach_mul_(gradients, factor)
        self.muon.step(scale)
        for group in self.adam.param_groups:
            group["lr"] = group["base"] * scale
        self.adam.step()
        return norm


def rate_scale(progress):
    """Warm-up over 2% of the time, then level, then linear to 0 from 40% on. Time, not steps: the last step, whenever
    it comes, has a rate near 0."""
    return min(1.0, progress / 0.02 + 0.01, max(0.02, (1 - progress) / 0.6))
