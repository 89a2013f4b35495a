# SPDX-License-Identifier: Apache-2.0
"""Muon for the matrices inside layers, Adam for the rest: the quickest start known for models of this size.

The optimizer keeps float32 weights; the model's parameters are views of their copies in the type it computes with, so an
update is a few operations on stacks of all matrices of a shape and on one long vector. No step waits for the GPU or needs
a number from the CPU but `rate`, so that a whole step can be a CUDA graph."""
import torch

MUON_RATE, MUON_MOMENTUM, DECAY = 0.02, 0.95, 0.03
RATES = {"embedding": 0.01, "index_": 0.003, "": 0.003}  # Adam: the first name found in the parameter's
BETAS, EPSILON, CLIP = (0.9, 0.95), 1e-10, 1.0
ADAM_NAMES = ("norm", "index_", "compress_", "branch_gate")
ALIGN = 64  # numbers: compiled code expects what it was compiled for, and wide loads want 16 bytes


def orthogonal(x, steps=5):
    """Newton-Schulz iteration of Muon (Jordan, 2024) on a stack of matrices: singular values go to about 1."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = x.bfloat16() if x.is_cuda else x
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT.contiguous() if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Matrices:
    """Muon for matrices of one shape."""

    def __init__(self, members, dtype):
        self.members = members
        self.master = torch.stack([p.detach().flatten(0, -2) for p in members]).float()
        self.momentum, self.shadow = torch.zeros_like(self.master), self.master.to(dtype)
        for p, copy in zip(members, self.shadow):
            p.data = copy.view(p.shape)
        self.factor = max(1.0, self.master.shape[-2] / self.master.shape[-1]) ** 0.5 * MUON_RATE

    def step(self, clip, rate):
        gradient = torch.stack([p.grad.view(self.master.shape[1:]) for p in self.members]).float().nan_to_num_(0.0, 0.0, 0.0) * clip
        self.momentum.lerp_(gradient, 1 - MUON_MOMENTUM)
        update = orthogonal(gradient.lerp_(self.momentum, MUON_MOMENTUM)).float()
        self.master.mul_(1 - MUON_RATE * DECAY * rate).sub_(update * (self.factor * rate))
        self.shadow.copy_(self.master)


class Vector:
    """Adam for parameters end to end."""

    def __init__(self, members, rates, dtype):
        self.members, self.sizes = members, [-(-p.numel() // ALIGN) * ALIGN for p in members]
        like = members[0]
        self.master, self.first, self.second, self.rates, self.gradient = (torch.zeros(sum(self.sizes), device=like.device)
                                                                           for _ in range(5))
        self.shadow = self.master.to(dtype)
        self.forgotten = torch.ones(2, device=like.device)  # what the moments still hold of their beginning, 0
        for p, size, rate, master, copy, rates_of in zip(members, self.sizes, rates, *(x.split(self.sizes) for x in (
                self.master, self.shadow, self.rates))):
            master[: p.numel()] = p.detach().flatten()
            rates_of[:] = rate
            copy.copy_(master)
            p.data = copy[: p.numel()].view(p.shape)

    def step(self, clip, rate):
        for p, gradient in zip(self.members, self.gradient.split(self.sizes)):
            gradient[: p.numel()].copy_(p.grad.flatten())
        gradient = self.gradient.nan_to_num(0.0, 0.0, 0.0) * clip
        self.first.lerp_(gradient, 1 - BETAS[0])
        self.second.lerp_(gradient.square(), 1 - BETAS[1])
        for held, beta in zip(self.forgotten, BETAS):
            held.mul_(beta)
        root = (self.second / (1 - self.forgotten[1])).sqrt_().add_(EPSILON)
        self.master.sub_(self.first / (1 - self.forgotten[0]) / root * self.rates * rate)
        self.shadow.copy_(self.master)


class Optimizer:
    def __init__(self, model, dtype):
        named = dict(model.named_parameters())
        is_matrix = lambda name, p: name.startswith("layers.") and p.dim() >= 2 and not any(key in name for key in ADAM_NAMES)
        self.parameters = list(named.values())
        stacks, vectors = {}, {}
        for name, p in named.items():
            if is_matrix(name, p):
                stacks.setdefault((p.numel() // p.shape[-1], p.shape[-1]), []).append(p)
            else:  # an indexer, which has no gradient in most steps, by itself
                rate = next(rate for key, rate in RATES.items() if key in name)
                vectors.setdefault("index_" in name, []).append((p, rate))
        self.parts = [Matrices(members, dtype) for members in stacks.values()]
        self.parts += [Vector(*zip(*pairs), dtype) for pairs in vectors.values()]
        self.rate = torch.zeros((), device=self.parameters[0].device)

    def zero(self):
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self):
        """One update; self.rate multiplies all learning rates. Parts without a gradient stay; a gradient that is not
        finite counts as none."""
        parts = [part for part in self.parts if part.members[0].grad is not None]
        norms = torch._foreach_norm([p.grad for part in parts for p in part.members])
        norm = torch.linalg.vector_norm(torch.stack(norms).float())
        clip = (CLIP / (norm + 1e-6)).clamp(max=1.0).nan_to_num(0.0)
        for part in parts:
            part.step(clip, self.rate)


def rate_scale(progress):
    """Warm-up over 2% of the time, then level, then linear to 0 from 40% on. Time, not steps: the last step, whenever
    it comes, has a rate near 0."""
    return min(1.0, progress / 0.02 + 0.01, max(0.02, (1 - progress) / 0.6))
