"""superoffload.AdamW against torch.optim.AdamW, against itself without overlap, and used wrongly."""
import copy
import gc
import os
import pickle
import random
import unittest
import warnings
import weakref
from unittest import mock

try:
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    import superoffload
    from superoffload import memory as memory_module
    from superoffload import parameters as parameters_module
except ImportError as error:
    raise unittest.SkipTest(f"{error}; the optimizer's tests need PyTorch") from error

# The same tests run on a GPU with SO_TEST_DEVICE=cuda.
DEVICE = torch.device("cuda", 0) if os.environ.get("SO_TEST_DEVICE") == "cuda" else torch.device("cpu")
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


class AgainstTorch(unittest.TestCase):
    def pair(self, **settings):
        ours, theirs = network(), network()
        return (
            (ours, superoffload.AdamW(groups_of(ours), lr=1e-3, **settings)),
            (theirs, torch.optim.AdamW(groups_of(theirs), lr=1e-3)),
        )

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


class AgainstItself(unittest.TestCase):
    def run_at_random(self, seed, overlap, under_forward=False, offload_ratio=None):
        """A run in which anything may happen; everything that it leaves."""
        chance = random.Random(seed)
        dtype = chance.choice([torch.float32, torch.bfloat16])
        model = network(dtype, seed)
        optimizer = superoffload.AdamW(
            groups_of(model),
            betas=(0.9, 0.99),
            max_grad_norm=chance.choice([0.0, 0.3, 1e6]),
            state_dtype=chance.choice([torch.float32, torch.bfloat16]),
            overlap=overlap,
            under_forward=under_forward,
            offload_ratio=offload_ratio,
            threads=2,
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
                settings, max_grad_norm = dict(optimizer._settings), optimizer.max_grad_norm
                model = other
                optimizer = superoffload.AdamW(
                    groups_of(model),
                    betas=(0.9, 0.99),
                    max_grad_norm=max_grad_norm,
                    state_dtype=torch.bfloat16 if settings["bf16_moments"] else torch.float32,
                    overlap=overlap,
                    under_forward=under_forward,
                    offload_ratio=offload_ratio,
                    threads=2,
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
        for seed in range(30):
            with self.subTest(seed=seed):
                overlapped = self.run_at_random(
                    seed, True, under_forward=seed % 2 == 0, offload_ratio=(None, 0.5, 0)[seed % 3]
                )
                self.assertTrue(same_bits(overlapped, self.run_at_random(seed, False)))
        counted = [key for key, value in self.counters[0].items() if isinstance(value, int)]
        total = {key: sum(counters[key] for counters in self.counters) for key in counted}
        for key in ("clipped_steps", "skipped_steps", "reopened_steps", "updated_by_device"):
            self.assertGreater(total[key], 10, total)
        self.assertGreater(total["updated_before_norm"] + total["weights_before_norm"], 0, total)

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

        model = network()
        optimizer = superoffload.AdamW(model.parameters(), lr=1e-4)
        for step in range(500):
            if step == 100:
                before = resident()
            backward(model, step)
            optimizer.step()
        self.assertLess(resident() - before, 8 << 20)
        for _ in range(3):  # threads and memory go with an optimizer
            optimizer = None
            gc.collect()
            optimizer = superoffload.AdamW(model.parameters(), lr=1e-4)


def small_units(test):
    patch = mock.patch.object(parameters_module, "_SMALLEST_UNIT", 1000)
    patch.start()
    test.addCleanup(patch.stop)


class UnderForward(unittest.TestCase):
    """step() has returned, and parameters have their new values when they are read, however that is done."""

    def setUp(self):
        small_units(self)

    def stepped(self, seed=1):
        """A model after a step of which nothing has arrived yet, its optimizer, and its twin, which has waited."""
        model, twin = network(seed=seed), network(seed=seed)
        optimizer = superoffload.AdamW(model.parameters(), lr=0.1, under_forward=True)
        other = superoffload.AdamW(twin.parameters(), lr=0.1)
        for one, its in ((model, optimizer), (twin, other)):
            backward(one, 0)
            its.step()
        self.assertTrue(all(map(optimizer._engine.is_pending, range(8))))
        return model, optimizer, twin

    def test_each_way_of_reading(self):
        readings = {
            "forward": lambda m: m(batch(0)[0]),
            "function": lambda m: nn.functional.linear(batch(0)[0], m[0].weight),
            "keyword": lambda m: nn.functional.linear(batch(0)[0], weight=m[0].weight, bias=m[0].bias),
            "list": lambda m: torch.cat([m[0].bias, m[2].bias]),
            "operator": lambda m: m[4].weight * 2,
            "method": lambda m: m[4].weight.norm(),
            "item": lambda m: m[4].weight[2, 3].item(),
            "data": lambda m: m[2].weight.data.clone(),
            "numpy": lambda m: torch.from_numpy(m[2].weight.detach().cpu().numpy().copy()),
            "aten": lambda m: torch.ops.aten.mm(batch(0)[0], m[0].weight.t()),
            "state_dict": lambda m: list(m.state_dict().values()),
            "deepcopy": lambda m: list(copy.deepcopy(m).parameters()),
            "pickle": lambda m: list(pickle.loads(pickle.dumps(m)).parameters()),
            "vector": lambda m: nn.utils.parameters_to_vector(m.parameters()),
            "functional_call": lambda m: torch.func.functional_call(m, dict(m.named_parameters()), (batch(0)[0],)),
            "repr": lambda m: repr(m[4].bias),
        }
        for name, read in readings.items():
            with self.subTest(name):
                model, _, twin = self.stepped()
                self.assertTrue(same_bits(read(model), read(twin)))

    def test_an_alias_from_before(self):
        model, twin = network(), network()
        aliases = [p.data for p in model.parameters()]
        optimizer = superoffload.AdamW(model.parameters(), lr=0.1, under_forward=True)
        other = superoffload.AdamW(twin.parameters(), lr=0.1)
        for one, its in ((model, optimizer), (twin, other)):
            backward(one, 0)
            its.step()
        for alias, parameter in zip(aliases, twin.parameters()):
            self.assertTrue(torch.equal(alias + 0, parameter + 0))

    def test_a_scripted_model(self):
        model, twin = network(), network()
        scripted = torch.jit.script(model)
        optimizer = superoffload.AdamW(model.parameters(), lr=0.1, under_forward=True)
        other = superoffload.AdamW(twin.parameters(), lr=0.1)
        for step in range(4):
            for one, its in ((scripted, optimizer), (twin, other)):
                backward(one, step)
                its.step()
        self.assertLess(difference(model, twin), 1e-5)

    def test_a_compiled_model_is_waited_for(self):
        model, twin = network(), network()
        compiled = torch.compile(model, backend="eager")
        self.addCleanup(torch._dynamo.reset)
        optimizer = superoffload.AdamW(model.parameters(), lr=0.1, under_forward=True)
        other = superoffload.AdamW(twin.parameters(), lr=0.1)
        for step in range(4):
            for one, its in ((compiled, optimizer), (twin, other)):
                backward(one, step)
                its.step()
            self.assertFalse(optimizer._engine.pending())
        self.assertEqual(difference(model, twin), 0)

    def test_checkpointing_and_accumulation(self):
        for reentrant in (False, True):
            model, twin = network(), network()
            optimizer = superoffload.AdamW(model.parameters(), lr=0.1, under_forward=True, max_grad_norm=0.5)
            other = superoffload.AdamW(twin.parameters(), lr=0.1, max_grad_norm=0.5, overlap=False)
            pending = 0
            for step in range(6):
                for one, its in ((model, optimizer), (twin, other)):
                    for number in range(2):
                        h = batch(10 * step + number)[0].requires_grad_()
                        for part in (one[:2], one[2:]):
                            h = checkpoint(part, h, use_reentrant=reentrant)
                        h.square().mean().backward()
                    its.step()
                pending += optimizer._engine.pending()
            self.assertEqual(pending, 6)
            self.assertEqual(difference(model, twin), 0)

    def test_other_modes(self):
        model, optimizer, twin = self.stepped()
        x, _ = batch(0)
        with DEVICE:  # a mode of its own, which ends before ours
            self.assertTrue(same_bits(model(x), twin(x)))
        backward(model, 1)
        with DEVICE:
            optimizer.step()
            self.assertFalse(optimizer._engine.pending())
        optimizer.state_dict()
        self.assertEqual(torch._C._len_torch_function_stack(), 0)

    def test_nothing_is_left_when_all_is_read(self):
        model, optimizer, twin = self.stepped()
        model(batch(0)[0])
        self.assertFalse(optimizer._engine.pending())
        self.assertFalse(torch.nn.modules.module._global_forward_pre_hooks)
        gone = []
        weakref.finalize(optimizer, gone.append, True)
        del optimizer
        gc.collect()
        self.assertTrue(gone)

    def test_an_optimizer_that_nobody_holds(self):
        model, optimizer, twin = self.stepped()
        del optimizer
        gc.collect()
        self.assertEqual(difference(model, twin), 0)

    def test_zero_grad_and_counting_read_nothing(self):
        model, optimizer, _ = self.stepped()
        optimizer.zero_grad()
        model.zero_grad()
        sum(p.numel() for p in model.parameters() if p.requires_grad and p.is_floating_point())
        self.assertEqual(len({(p.shape, p.dtype, p.device) for p in model.parameters()}), 5)
        self.assertTrue(all(map(optimizer._engine.is_pending, range(8))))

    def test_values_that_are_loaded(self):
        model, optimizer, twin = self.stepped()
        model.load_state_dict(network(seed=5).state_dict())
        self.assertEqual(difference(model, network(seed=5)), 0)
        backward(model, 3)
        optimizer.step()
        self.assertNotEqual(difference(model, network(seed=5)), 0)

    def test_a_read_that_cannot_be_seen(self):
        model, optimizer, _ = self.stepped()
        with torch._C.DisableTorchFunction():
            loss = (model[4].weight * 1.0).sum()
        with self.assertRaisesRegex(superoffload.UserError, "was read before its new value was there"):
            loss.backward()
        optimizer.zero_grad()


@unittest.skipUnless(DEVICE.type == "cuda", "SO_TEST_DEVICE=cuda runs it")
class OnAGpu(unittest.TestCase):
    """What only a GPU has: streams of PyTorch, memory that is used anew while work is under way."""

    def setUp(self):
        small_units(self)

    def large(self):
        torch.manual_seed(2)
        layers = [layer for _ in range(6) for layer in (nn.Linear(1024, 1024), nn.GELU())]
        return nn.Sequential(*layers).to(DEVICE)

    def test_memory_of_gradients_is_used_anew(self):
        model, twin = self.large(), self.large()
        optimizer = superoffload.AdamW(model.parameters(), lr=1e-3, max_grad_norm=1.0)
        other = superoffload.AdamW(twin.parameters(), lr=1e-3, max_grad_norm=1.0, overlap=False, under_forward=False)
        streams = [torch.cuda.Stream() for _ in range(2)]
        x = torch.randn(4096, 1024, device=DEVICE)
        torch.cuda.synchronize()
        for step in range(12):
            with torch.cuda.stream(streams[step % 2]):
                streams[step % 2].wait_stream(streams[1 - step % 2])
                for part in x.split(1024):
                    model(part).square().mean().backward()
                    torch.full((1024, 1024), float("nan"), device=DEVICE)  # likely where a gradient was
                optimizer.step()
            for part in x.split(1024):
                twin(part).square().mean().backward()
                torch.cuda.synchronize()
            other.step()
            torch.cuda.synchronize()
        torch.cuda.current_stream().wait_stream(streams[1])
        self.assertEqual(difference(model, twin), 0)
        self.assertEqual(optimizer.skipped_steps, 0)

    def test_a_forward_pass_of_two_streams(self):
        """Gradients are accumulated on the stream of the forward pass of each."""
        model, twin = self.large(), self.large()
        optimizer = superoffload.AdamW(model.parameters(), lr=1e-3)
        other = superoffload.AdamW(twin.parameters(), lr=1e-3)
        side = torch.cuda.Stream()
        x = torch.randn(512, 1024, device=DEVICE)
        for _ in range(6):
            h = model[:6](x)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                loss = model[6:](h).square().mean()
            torch.cuda.current_stream().wait_stream(side)
            loss.backward()
            optimizer.step()
            twin(x).square().mean().backward()
            other.step()
        self.assertEqual(difference(model, twin), 0)

    def test_the_current_device_stays(self):
        model = self.large()
        optimizer = superoffload.AdamW(model.parameters())
        model(torch.randn(8, 1024, device=DEVICE)).sum().backward()
        before = torch.cuda.current_device(), torch.cuda.current_stream()
        optimizer.step()
        self.assertEqual((torch.cuda.current_device(), torch.cuda.current_stream()), before)

    def test_a_graph_that_captures_backward(self):
        model = self.large()
        optimizer = superoffload.AdamW(model.parameters())
        x = torch.randn(8, 1024, device=DEVICE)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            model(x).sum().backward()
            optimizer.zero_grad()
        torch.cuda.current_stream().wait_stream(side)
        with self.assertRaisesRegex((superoffload.UserError, RuntimeError), "CUDA graph captures backward|captur"):
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                model(x).sum().backward()

    def test_memory_stays(self):
        model = self.large()
        optimizer = superoffload.AdamW(model.parameters(), max_grad_norm=1.0)
        x = torch.randn(64, 1024, device=DEVICE)
        held = []
        for step in range(60):
            model(x).square().mean().backward()
            optimizer.step()
            if step % 20 == 19:
                torch.cuda.synchronize()
                held.append((torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]))
        self.assertEqual(held[1], held[2])


class Misuse(unittest.TestCase):
    def refused(self, text):
        return self.assertRaisesRegex(superoffload.UserError, text)

    def test_of_settings(self):
        parameters = list(network().parameters())
        for settings, text in (
            ({"lr": -1}, "^lr is -1.0"),
            ({"betas": (0.9, 1.0)}, "betas are"),
            ({"eps": 0}, "eps"),
            ({"weight_decay": float("nan")}, "weight_decay"),
            ({"max_grad_norm": -1}, "^max_grad_norm is -1"),
            ({"state_dtype": torch.float16}, "^state_dtype is torch.float16"),
            ({"threads": 1.5}, "^threads is 1.5"),
            ({"state_dtype": torch.bfloat16}, r"^betas are \(0.9, 0.999\): in bf16, second moments"),
        ):
            with self.subTest(settings), self.refused(text):
                superoffload.AdamW(parameters, **settings)

    def test_of_parameters(self):
        with self.refused("is torch.float64: parameters are to be"):
            superoffload.AdamW(network(torch.float64).parameters())
        with self.refused("is on meta: the optimizer is for the CPU and for NVIDIA GPUs"):
            superoffload.AdamW(network().to("meta").parameters())
        with self.refused("has gaps or repeats in memory"):
            superoffload.AdamW([nn.Parameter(torch.zeros(4, 4, device=DEVICE)[:, ::2])])
        memory = torch.zeros(8, device=DEVICE)
        with self.refused("parameter 0 of group 0 and parameter 1 of group 0 share memory"):
            superoffload.AdamW([nn.Parameter(memory[:6]), nn.Parameter(memory[4:])])

    def test_memory(self):
        model = network()
        with self.refused("two ways to say the same"):
            superoffload.AdamW(model.parameters(), offload_ratio=0.5, device_memory=1 << 20)
        with self.refused("offload_ratio is 2: give a number from 0 to 1"):
            superoffload.AdamW(model.parameters(), offload_ratio=2)
        with self.refused("device_memory is '8GB': give a number of bytes"):
            superoffload.AdamW(model.parameters(), device_memory="8GB")
        with mock.patch.object(memory_module._engine, "available_host_memory", lambda: (1000, "cgroup /small")):
            with self.refused(r"takes 0\.0 GiB of host memory, and there are 0\.0 GiB \(cgroup /small\); state_dtype"):
                superoffload.AdamW(model.parameters())
        with mock.patch.object(memory_module._engine, "available_host_memory", lambda: (10**9, "cgroup /small")):
            all_of_it = superoffload.AdamW(model.parameters())
        self.assertEqual(all_of_it.counters()["steps"], 0)

    def test_memory_for_updates_that_may_be_discarded_is_what_there_is(self):
        model = network()
        optimizer = superoffload.AdamW(model.parameters())
        tensors = [(m.name, m.address, False, m.parameter.numel(), m.unit, m.group) for m in optimizer._managed]
        settings = optimizer._settings | {"gpu": -1, "device_units": 0, "awaits_updates": True, "max_grad_norm": 0.0}
        settings["bucket_elements"] = 1 << 10
        takes = []
        for spare in memory_module._SPARE_STATE:
            takes.append(memory_module._engine.memory_of(tensors, settings | {"spare_state": spare})[1])
        self.assertGreater(takes[0], takes[-1])
        for available, expected in ((takes[0], 0.25), (takes[0] - 1, 0.1), (takes[-1], 0.02)):
            with mock.patch.object(memory_module._engine, "available_host_memory", lambda: (available, "")):
                memory_module.check(tensors, settings, False)
            self.assertEqual(settings["spare_state"], expected)

    def test_two_optimizers_over_one_parameter(self):
        model = network()
        first = superoffload.AdamW(model.parameters())
        with self.refused("has a superoffload.AdamW already"):
            superoffload.AdamW(model.parameters())
        del first
        gc.collect()
        superoffload.AdamW(model.parameters())

    def test_a_step_without_backward(self):
        model = network()
        optimizer = superoffload.AdamW(model.parameters())
        with self.refused("without a gradient"):
            optimizer.step()
        backward(model, 0)
        optimizer.step()
        with self.refused("without a gradient"):
            optimizer.step()

    def test_parameters_that_move(self):
        for move in (
            lambda model: model.to(torch.bfloat16),
            lambda model: setattr(model[0].weight, "data", model[0].weight.detach().clone()),
        ):
            model = network()
            optimizer = superoffload.AdamW(model.parameters())
            move(model)
            with self.refused("lies in other memory than when the optimizer was made"):
                backward(model, 0)
                optimizer.step()

    def test_a_grad_scaler(self):
        model = network()
        optimizer = superoffload.AdamW(model.parameters())
        scaler = torch.amp.GradScaler(DEVICE.type)
        x, y = batch(0)
        scaler.scale(nn.functional.mse_loss(model(x), y)).backward()
        with self.refused("^a GradScaler scales the loss"):
            scaler.step(optimizer)
        scaler = torch.amp.GradScaler(DEVICE.type, enabled=False)
        optimizer.zero_grad()
        backward(model, 0)
        scaler.step(optimizer)

    def test_sparse_gradients(self):
        embedding = nn.Embedding(5, 3, sparse=True, device=DEVICE)
        optimizer = superoffload.AdamW(embedding.parameters())
        with self.refused("has a sparse gradient"):
            embedding(torch.tensor([1, 2], device=DEVICE)).sum().backward()
        del optimizer

    def test_copies_of_it(self):
        model = network()
        optimizer = superoffload.AdamW(model.named_parameters(), lr=0.1)
        for copied in (copy.deepcopy, pickle.dumps):
            with self.refused("cannot be copied or pickled"):
                copied(optimizer)
        # A model can be, and its copy is nobody's.
        twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
        backward(twin, 0)
        self.assertIsNotNone(twin[0].weight.grad)
        other = superoffload.AdamW(twin.parameters(), lr=0.1)
        other.step()
        backward(model, 0)
        optimizer.step()
        self.assertEqual(difference(model, twin), 0)

    def test_state_of_another_model(self):
        small, large = nn.Linear(3, 4, device=DEVICE), nn.Linear(4, 4, device=DEVICE)
        mine, other = superoffload.AdamW(small.parameters()), torch.optim.AdamW(large.parameters())
        large(torch.ones(1, 4, device=DEVICE)).sum().backward()
        other.step()
        with self.refused(r"has shape \(4, 4\), and the parameter \(4, 3\)"):
            mine.load_state_dict(other.state_dict())

    def test_variants_that_are_not_implemented(self):
        model, twin = network(), network()
        mine = superoffload.AdamW(model.parameters(), lr=5e-4)
        other = torch.optim.AdamW(twin.parameters(), amsgrad=True)
        with self.refused("amsgrad=True is not implemented"):
            mine.load_state_dict(other.state_dict())
        self.assertEqual(mine.param_groups[0]["lr"], 5e-4)
        backward(model, 0)
        mine.step()


if __name__ == "__main__":
    unittest.main()
