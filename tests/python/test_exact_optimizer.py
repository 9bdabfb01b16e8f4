"""superoffload.AdamW against itself without overlap."""
import copy
import gc
import os
import random
import unittest
import warnings
from unittest import mock

# First: it skips the tests where there is no PyTorch.
from optimizer_models import DEVICE, backward, difference, groups_of, network, same_bits, small_units

import torch
from torch import nn

import superoffload
from superoffload import memory as memory_module


class AgainstItself(unittest.TestCase):
    def run_at_random(self, seed, overlap, **settings):
        """A run in which anything may happen; everything that it leaves."""
        chance = random.Random(seed)
        dtype = chance.choice([torch.float32, torch.bfloat16])
        model = network(dtype, seed)
        optimizer = superoffload.AdamW(
            groups_of(model),
            betas=(0.9, 0.99),
            max_grad_norm=chance.choice([0.0, 0.3, 1e6]),
            state_dtype=chance.choice([torch.float32, torch.bfloat16, torch.uint8]),
            overlap=overlap,
            threads=2,
            **settings,
        )
        passes = 1
        seen = []
        for step in range(8):
            if chance.random() < 0.3:
                passes = chance.randint(1, 3)
            parts = list(model.parameters())
            for number in range(passes):
                unused = [p for p in parts if chance.random() < 0.05]
                for p in unused:
                    p.requires_grad_(False)
                scale = float("nan") if chance.random() < 0.05 else 1.0
                backward(model, 100 * step + number, scale)
                for p in unused:
                    p.requires_grad_(True)
                if chance.random() < 0.1:
                    seen.append([p.detach().clone() for p in parts])
                if chance.random() < 0.05:
                    optimizer.zero_grad()
            if chance.random() < 0.1:
                optimizer.max_grad_norm = chance.choice([0.0, 0.3])
            if chance.random() < 0.2:
                optimizer.param_groups[0]["lr"] *= 0.5
            if chance.random() < 0.1:
                seen.append(copy.deepcopy(optimizer.state_dict()))
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    optimizer.step()
            except superoffload.UserError:  # the gradients were dropped
                pass
            if chance.random() < 0.1:  # as a run that stops and goes on
                state, other = optimizer.state_dict(), network(dtype, seed + 1)
                other.load_state_dict(model.state_dict())
                made_with, max_grad_norm = dict(optimizer._settings), optimizer.max_grad_norm
                model = other
                optimizer = superoffload.AdamW(
                    groups_of(model),
                    betas=(0.9, 0.99),
                    max_grad_norm=max_grad_norm,
                    state_dtype={32: torch.float32, 16: torch.bfloat16, 8: torch.uint8}[made_with["moment_bits"]],
                    overlap=overlap,
                    threads=2,
                    **settings,
                )
                optimizer.load_state_dict(state)
            seen.append((optimizer.grad_norm if optimizer.grad_norm == optimizer.grad_norm else None))
        self.counters.append(optimizer.counters())
        return seen, [p.detach().clone() for p in model.parameters()], optimizer.state_dict()

    def test_overlap_changes_no_bit(self):
        self.counters = []
        small_units(self)
        # Until times are measured, the policy updates ahead of the norm what there is room for.
        patch = mock.patch.object(memory_module, "_SPARE_STATE", (1.0,))
        patch.start()
        self.addCleanup(patch.stop)
        for seed in range(int(os.environ.get("SO_RANDOM_SCHEDULES", 30))):
            with self.subTest(seed=seed):
                overlapped = self.run_at_random(
                    seed,
                    True,
                    under_forward=seed % 2 == 0,
                    offload_ratio=(None, 0.5, 0)[seed % 3],
                    update_over_link=seed % 4 < 2,
                )
                self.assertTrue(same_bits(overlapped, self.run_at_random(seed, False)))
        counted = [key for key, value in self.counters[0].items() if isinstance(value, int)]
        total = {key: sum(counters[key] for counters in self.counters) for key in counted}
        for key in ("clipped_steps", "skipped_steps", "reopened_steps", "updated_by_device", "updated_over_link"):
            self.assertGreater(total[key], 10, total)
        self.assertGreater(total["updated_before_norm"] + total["weights_before_norm"], 0, total)

    def test_a_split_that_steps_have_shown_changes_no_bit(self):
        small_units(self)
        model, twin = network(), network()
        with mock.patch.object(memory_module, "room_for_state", lambda device: 30_000):
            optimizer = superoffload.AdamW(model.parameters(), lr=1e-2, device_memory="auto")
            other = superoffload.AdamW(twin.parameters(), lr=1e-2)
            for step in range(6):
                for one, its in ((model, optimizer), (twin, other)):
                    backward(one, step)
                    its.step()
                self.assertEqual(optimizer.counters()["updated_by_device"] > 0, step > 2)
        self.assertEqual(difference(model, twin), 0)
        self.assertTrue(same_bits(optimizer.state_dict()["state"], other.state_dict()["state"]))
        optimizer = superoffload.AdamW(network().parameters(), device_memory="auto")
        with mock.patch.object(memory_module._engine, "available_host_memory", lambda: (10_000, "")):
            optimizer._until_split = 1
            with self.assertWarnsRegex(UserWarning, "leaves all state in host memory"):
                optimizer._split_state()

    def test_nothing_shows_between_backward_and_step(self):
        model = network()
        optimizer = superoffload.AdamW(model.parameters(), lr=0.1)
        for step in range(6):
            before = [p.detach().clone() for p in model.parameters()]
            backward(model, step)
            self.assertTrue(same_bits(before, [p.detach() for p in model.parameters()]))
            optimizer.step()
            self.assertFalse(same_bits(before, [p.detach() for p in model.parameters()]))

    def test_a_step_that_is_not_finite_is_skipped(self):
        model = network()
        optimizer = superoffload.AdamW(model.parameters(), lr=0.1)
        for step in range(3):
            backward(model, step)
            optimizer.step()
        before = [p.detach().clone() for p in model.parameters()], optimizer.state_dict()
        model[3].weight.grad = torch.full_like(model[3].weight, float("inf"))
        with self.assertWarnsRegex(UserWarning, "^step skipped: a gradient of parameter 4 of group 0 is Inf or NaN$"):
            optimizer.step()
        self.assertEqual(optimizer.skipped_steps, 1)
        self.assertTrue(same_bits(before, ([p.detach() for p in model.parameters()], optimizer.state_dict())))

    def test_weights_that_are_loaded_count(self):
        for dtype in (torch.float32, torch.bfloat16):
            ours, theirs = network(dtype), network(dtype)
            mine = superoffload.AdamW(ours.parameters(), lr=1e-3)
            backward(ours, 0)
            mine.step()
            loaded = network(dtype, seed=9)
            ours.load_state_dict(loaded.state_dict())
            theirs.load_state_dict(loaded.state_dict())
            other = superoffload.AdamW(theirs.parameters(), lr=1e-3)
            other.load_state_dict(mine.state_dict())
            for model, optimizer in ((ours, mine), (theirs, other)):
                backward(model, 1)
                optimizer.step()
            self.assertTrue(same_bits(list(ours.parameters()), list(theirs.parameters())))
            self.assertLess(difference(ours, loaded), 2e-2)

    def test_nothing_is_left_behind(self):
        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * 4096

        def threads():
            return len(os.listdir("/proc/self/task"))

        model = network()
        optimizer = superoffload.AdamW(model.parameters(), lr=1e-4)
        for step in range(1000):
            if step == 100:
                before = resident()
            backward(model, step % 10)
            optimizer.step()
        self.assertLess(resident() - before, 8 << 20)
        # Threads and memory go with an optimizer, whose state here is 13 MB.
        model = nn.Linear(1000, 1000, device=DEVICE)
        for number in range(13):
            optimizer = None
            gc.collect()
            if number == 3:
                before = resident(), threads()
            optimizer = superoffload.AdamW(model.parameters(), lr=1e-4)
            model(torch.ones(1, 1000, device=DEVICE)).sum().backward()
            optimizer.step()
        optimizer = None
        gc.collect()
        self.assertLess(resident() - before[0], 30 << 20)
        if DEVICE.type == "cpu":  # the GPU's driver has some of its own
            self.assertEqual(threads(), before[1])


if __name__ == "__main__":
    unittest.main()
