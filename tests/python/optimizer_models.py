"""The models of the optimizer's tests, and what compares them."""
import os
import unittest
from unittest import mock

try:
    import torch
    from torch import nn

    from superoffload import parameters as parameters_module
except ImportError as error:
    raise unittest.SkipTest(f"{error}; the optimizer's tests need PyTorch") from error

# The same tests run on a GPU with SO_TEST_DEVICE=cuda; of several processes each has its own.
_GPU = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
DEVICE = _GPU if os.environ.get("SO_TEST_DEVICE") == "cuda" else torch.device("cpu")
# A step differs from torch's in rounding alone: the decay is not rounded into the weight by itself, and multiply-adds
# are fused (optim/adamw.h). With weights and steps below 1 that is a few units of 2^-24 a step.
STEP = 1e-6


def network(dtype=torch.float32, seed=1):
    torch.manual_seed(seed)
    layers = [nn.Linear(20, 90), nn.GELU(), nn.Linear(90, 90), nn.LayerNorm(90), nn.Linear(90, 7)]
    return nn.Sequential(*layers).to(DEVICE, dtype)


def batch(seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(16, width, generator=generator).to(DEVICE, dtype) for width in (20, 7))


def backward(model, seed, scale=1.0):
    x, y = batch(seed, next(model.parameters()).dtype)
    loss = nn.functional.mse_loss(model(x), y) * scale
    loss.backward()
    return loss.detach()


def groups_of(model):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    return [
        {"params": decayed, "weight_decay": 0.1, "lr": 2e-3},
        {"params": others, "weight_decay": 0.0, "betas": (0.8, 0.95), "eps": 1e-6},
    ]


def difference(one, other):
    pairs = zip(one.parameters(), other.parameters())
    return max((p.detach().float() - q.detach().float()).abs().max().item() for p, q in pairs)


def same_bits(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_bits(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same_bits, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return one == other


def small_units(test):
    patch = mock.patch.object(parameters_module, "_SMALLEST_UNIT", 1000)
    patch.start()
    test.addCleanup(patch.stop)
