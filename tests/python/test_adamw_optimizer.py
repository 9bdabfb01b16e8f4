"""superoffload.AdamW against torch.optim.AdamW."""
import unittest

# First: it skips the tests where there is no PyTorch.
from optimizer_models import DEVICE, STEP, backward, batch, difference, groups_of, network, same_bits

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import superoffload


class AgainstTorch(unittest.TestCase):
    def pair(self, **settings):
        ours, theirs = network(), network()
        return (
            (ours, superoffload.AdamW(groups_of(ours), lr=1e-3, **settings)),
            (theirs, torch.optim.AdamW(groups_of(theirs), lr=1e-3)),
        )

    def test_a_weight_decay_that_every_group_overrules_warns(self):
        groups = [{"params": list(network().parameters()), "weight_decay": 0.0}]
        with self.assertWarnsRegex(UserWarning, "weight_decay=0.1 has no effect"):
            optimizer = superoffload.AdamW(groups, weight_decay=0.1)
        self.assertEqual(optimizer.param_groups[0]["weight_decay"], 0.0)
        self.assertEqual(superoffload.AdamW(network().parameters()).param_groups[0]["weight_decay"], 1e-2)

    def test_groups_scheduler_clipping_and_accumulation(self):
        for passes, max_norm in ((1, 0.0), (1, 0.4), (3, 0.4)):
            with self.subTest(passes=passes, max_norm=max_norm):
                (ours, mine), (theirs, other) = self.pair(max_grad_norm=max_norm)
                schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 20) for o in (mine, other)]
                for step in range(20):
                    for number in range(passes):
                        for model in (ours, theirs):
                            backward(model, 10 * step + number, 1 / passes)
                    self.assertTrue(all(p.grad is None for p in ours.parameters()))
                    norm = nn.utils.clip_grad_norm_(theirs.parameters(), max_norm or float("inf"))
                    mine.step()
                    other.step()
                    self.assertAlmostEqual(mine.grad_norm, norm.item(), delta=1e-5 * norm.item())
                    for optimizer, schedule in zip((mine, other), schedules):
                        optimizer.zero_grad()
                        schedule.step()
                    self.assertLess(difference(ours, theirs), (step + 1) * STEP)
                counters = mine.counters()
                self.assertEqual(counters["steps"], 20)
                self.assertEqual(counters["clipped_steps"] > 0, max_norm > 0)

    def test_one_step_from_torchs_own_state(self):
        (ours, mine), (theirs, other) = self.pair()
        for step in range(10):
            ours.load_state_dict(theirs.state_dict())
            mine.load_state_dict(other.state_dict())
            for model, optimizer in ((ours, mine), (theirs, other)):
                backward(model, step)
                optimizer.step()
                optimizer.zero_grad()
            self.assertLess(difference(ours, theirs), STEP)
            self.assertEqual([g["lr"] for g in mine.param_groups], [g["lr"] for g in other.param_groups])

    def test_torch_goes_on_from_our_state(self):
        (ours, mine), (theirs, other) = self.pair()
        for step in range(5):
            backward(ours, step)
            mine.step()
        theirs.load_state_dict(ours.state_dict())
        other.load_state_dict(mine.state_dict())
        for step in range(5):
            for model, optimizer in ((ours, mine), (theirs, other)):
                backward(model, 100 + step)
                optimizer.step()
                optimizer.zero_grad()
            self.assertLess(difference(ours, theirs), (step + 1) * STEP)

    def test_bf16_parameters_have_fp32_masters(self):
        ours = network(torch.bfloat16)
        mine = superoffload.AdamW(ours.parameters(), lr=1e-3, weight_decay=0.1)
        masters = [p.detach().float().clone().requires_grad_() for p in ours.parameters()]
        other = torch.optim.AdamW(masters, lr=1e-3, weight_decay=0.1)
        for step in range(10):
            for p, master in zip(ours.parameters(), masters):
                gradient = torch.randn(p.shape, generator=torch.Generator().manual_seed(step)).bfloat16().to(DEVICE)
                p.grad, master.grad = gradient, gradient.float()
            mine.step()
            other.step()
            for (p, master), state in zip(zip(ours.parameters(), masters), mine.state_dict()["state"].values()):
                self.assertLess((state["master"] - master.detach().cpu()).abs().max().item(), (step + 1) * STEP)
                self.assertTrue(torch.equal(state["master"].bfloat16(), p.detach().cpu()))

    def test_both_dtypes_in_one_optimizer(self):
        ours, theirs = network(), network()
        for model in (ours, theirs):
            model[2].to(torch.bfloat16)
        mine = superoffload.AdamW(ours.parameters(), lr=1e-2)
        before = [p.detach().clone() for p in ours.parameters()]
        for p in ours.parameters():
            p.grad = torch.ones_like(p)
        mine.step()
        for p, old in zip(ours.parameters(), before):
            self.assertEqual(p.dtype, old.dtype)
            moved = (old.float() * (1 - 1e-4) - 1e-2).to(p.dtype)
            bound = 1e-6 if p.dtype == torch.float32 else 4e-3
            self.assertLess((p.detach().float() - moved.float()).abs().max().item(), bound)

    def test_tied_frozen_and_unused_parameters(self):
        def tied():
            model = network()
            model.append(nn.Linear(7, 20, bias=False))
            model.append(nn.Linear(20, 7, bias=False))
            model[6].weight = nn.Parameter(model[5].weight.detach().t().contiguous())
            model.append(model[4].__class__(90, 7))  # never called
            model[0].weight.requires_grad_(False)
            model.shared = model[2].weight
            return model.to(DEVICE)

        def run(model, seed):
            x, y = batch(seed)
            h = nn.functional.linear(model[:3](x), model.shared)
            nn.functional.mse_loss(model[3:7](h), y).backward()

        ours, theirs = tied(), tied()
        theirs.load_state_dict(ours.state_dict())
        mine = superoffload.AdamW(ours.parameters(), lr=1e-3)
        other = torch.optim.AdamW(theirs.parameters(), lr=1e-3)
        untouched = [ours[7].weight.detach().clone(), ours[0].weight.detach().clone()]
        for step in range(6):
            for model, optimizer in ((ours, mine), (theirs, other)):
                if step == 3:
                    model[0].weight.requires_grad_(True)
                run(model, step)
                optimizer.step()
                optimizer.zero_grad()
            self.assertLess(difference(ours, theirs), (step + 1) * STEP)
            self.assertEqual(torch.equal(ours[0].weight, untouched[1]), step < 3)
        self.assertTrue(torch.equal(ours[7].weight, untouched[0]))
        self.assertEqual(len(mine.state_dict()["state"]), len(other.state_dict()["state"]))
        counts = [{key: s["step"] for key, s in o.state_dict()["state"].items()} for o in (mine, other)]
        self.assertTrue(same_bits(*counts))

    def test_gradient_checkpointing_of_both_kinds(self):
        for reentrant in (False, True):
            ours, theirs = network(), network()
            mine = superoffload.AdamW(ours.parameters(), lr=1e-3)
            other = torch.optim.AdamW(theirs.parameters(), lr=1e-3)
            for step in range(4):
                x, y = batch(step)
                h = x.requires_grad_()
                for part in (ours[:2], ours[2:]):
                    h = checkpoint(part, h, use_reentrant=reentrant)
                nn.functional.mse_loss(h, y).backward()
                backward(theirs, step)
                for optimizer in (mine, other):
                    optimizer.step()
                    optimizer.zero_grad()
                self.assertLess(difference(ours, theirs), (step + 1) * STEP)

    def test_convolutions_in_any_memory_format(self):
        def convolutions():
            torch.manual_seed(3)
            model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
            return model.to(DEVICE, memory_format=torch.channels_last)

        ours, theirs = convolutions(), convolutions()
        mine = superoffload.AdamW(ours.parameters(), lr=1e-3)
        other = torch.optim.AdamW(theirs.parameters(), lr=1e-3)
        for step in range(4):
            x = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(step)).to(DEVICE)
            for model, optimizer in ((ours, mine), (theirs, other)):
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            self.assertLess(difference(ours, theirs), (step + 1) * STEP)
        for mine_state, state in zip(mine.state_dict()["state"].values(), other.state_dict()["state"].values()):
            self.assertLess((mine_state["exp_avg"] - state["exp_avg"].cpu()).abs().max().item(), 1e-6)

    def test_parameters_that_move(self):
        def to_other_memory(model):
            for p in model.parameters():
                p.data = p.detach().clone()

        def to_another_layout(model):
            with torch.no_grad():
                for p in model.parameters():
                    p.data = (p * 0.5).t().contiguous().t() if p.dim() == 2 else p * 0.5

        for dtype, tolerance in ((torch.float32, STEP), (torch.bfloat16, 0.02)):
            for move, under_forward in ((to_other_memory, False), (to_another_layout, False), (to_other_memory, True)):
                model, twin = network(dtype), network(dtype)
                mine = superoffload.AdamW(model.parameters(), lr=1e-2, under_forward=under_forward)
                other = torch.optim.AdamW(twin.parameters(), lr=1e-2)
                kept = [p.detach() for p in model.parameters()]  # the former memory, which is nobody's to write
                for step in range(4):
                    for m in (model, twin):
                        backward(m, step, 0.5)
                        if step != 1:
                            move(m)
                        if step == 2:
                            m[0].weight.data.mul_(0.5)
                        backward(m, step + 10, 0.5)
                    if step == 0:
                        before = [p.clone() for p in kept]
                    for optimizer in (mine, other):
                        optimizer.step()
                        optimizer.zero_grad()
                    self.assertLess(difference(model, twin), (step + 1) * tolerance, (dtype, move, step))
                    self.assertTrue(all(map(torch.equal, kept, before)))
                move(model)
                self.assertEqual(mine.state_dict()["state"][0]["step"], 4)

    def test_added_groups_and_closures(self):
        ours, theirs = network(), network()
        mine = superoffload.AdamW(ours[:3].parameters(), lr=1e-3)
        other = torch.optim.AdamW(theirs[:3].parameters(), lr=1e-3)
        for step in range(6):
            for model, optimizer in ((ours, mine), (theirs, other)):
                if step == 3:  # within a step, whose gradients stay
                    model.zero_grad()
                    backward(model, 100)
                    optimizer.add_param_group({"params": model[3:].parameters(), "lr": 1e-2})

                def closure(model=model, optimizer=optimizer, step=step):
                    if step != 3:
                        optimizer.zero_grad()
                    return backward(model, step)

                self.assertGreater(optimizer.step(closure), 0)
            self.assertLess(difference(ours, theirs), (step + 1) * STEP)


if __name__ == "__main__":
    unittest.main()
