"""Tests whose runs give the same with superoffload.AdamW and with PyTorch's own."""
import unittest

# First: it skips the tests where there is no PyTorch.
from optimizer_models import DEVICE, STEP

import superoffload
import torch
from torch import nn

BOTH = (superoffload.AdamW, torch.optim.AdamW)


def leaf(*values):
    return nn.Parameter(torch.tensor(values or (1.0, 1.0), device=DEVICE))


def stepped(optimizer, *parameters, gradient=1.0):
    for p in parameters:
        p.grad = torch.full_like(p, gradient)
    optimizer.step()
    optimizer.zero_grad()


class Case(unittest.TestCase):
    def same(self, run):
        """`run(cls)` gives the same with both, in fp32 to rounding."""
        mine, other = (self.plain(run(cls)) for cls in BOTH)
        self.close(mine, other)

    def plain(self, value):
        if isinstance(value, torch.Tensor):
            return value.detach().double().tolist()
        if isinstance(value, dict):
            return {key: self.plain(v) for key, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.plain(v) for v in value]
        return value

    def close(self, mine, other):
        if isinstance(mine, float):
            self.assertAlmostEqual(mine, other, delta=4 * STEP)
        elif isinstance(mine, dict):
            self.assertEqual(mine.keys(), other.keys())
            for key in mine:
                self.close(mine[key], other[key])
        elif isinstance(mine, list):
            self.assertEqual(len(mine), len(other))
            for a, b in zip(mine, other):
                self.close(a, b)
        else:
            self.assertEqual(mine, other)

    def refused(self, text):
        return self.assertRaisesRegex(superoffload.UserError, text)
