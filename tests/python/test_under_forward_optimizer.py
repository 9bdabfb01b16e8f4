"""superoffload.AdamW whose new values come under the next forward pass."""
import copy
import gc
import pickle
import unittest
import weakref
from unittest import mock

# First: it skips the tests where there is no PyTorch.
from optimizer_models import DEVICE, backward, batch, difference, network, same_bits, small_units

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import superoffload
from superoffload import tables as tables_module


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

    def test_rows_that_are_looked_up(self):
        class Language(nn.Module):
            def __init__(self, tied):
                super().__init__()
                torch.manual_seed(4)
                self.table = nn.Embedding(300, 16)
                self.body = nn.Linear(16, 16)
                self.head = nn.Linear(16, 300, bias=False)
                if tied:
                    self.head.weight = self.table.weight

            def forward(self, ids):
                return self.head(torch.tanh(self.body(self.table(ids))))

        patch = mock.patch.object(tables_module, "_SMALLEST", 1000)
        patch.start()
        self.addCleanup(patch.stop)
        for tied, dtype in ((True, torch.bfloat16), (False, torch.float32)):
            with self.subTest(tied=tied, dtype=dtype):
                model, twin = (Language(tied).to(DEVICE, dtype) for _ in range(2))
                settings = {"lr": 0.1, "max_grad_norm": 0.5}
                optimizer = superoffload.AdamW(model.parameters(), under_forward=True, **settings)
                other = superoffload.AdamW(twin.parameters(), under_forward=False, overlap=False, **settings)
                served = 0
                for step in range(8):
                    generator = torch.Generator().manual_seed(step)
                    for _ in range(1 + (step == 5)):
                        ids = torch.randint(0, 300, (4, 20), generator=generator).to(DEVICE)
                        outputs = []
                        for one in (model, twin):
                            rows = one.table(ids)
                            if one is model and optimizer._engine.is_pending(0):
                                served += 1
                            outputs.append(one.head(torch.tanh(one.body(rows))).float())
                            outputs[-1].square().mean().backward()
                        self.assertTrue(torch.equal(*outputs))
                    optimizer.step()
                    other.step()
                self.assertEqual(served, 6)  # not before there is a step, and from the second one on
                self.assertEqual(difference(model, twin), 0)
                self.assertTrue(same_bits(optimizer.state_dict()["state"], other.state_dict()["state"]))

    def test_a_table_that_is_read_out_of_sight(self):
        patch = mock.patch.object(tables_module, "_SMALLEST", 1000)
        patch.start()
        self.addCleanup(patch.stop)
        table = nn.Embedding(300, 16, device=DEVICE)
        optimizer = superoffload.AdamW(table.parameters(), lr=0.1, under_forward=True)
        ids = torch.arange(20, device=DEVICE)
        for _ in range(2):
            table(ids).sum().backward()
            optimizer.step()
        loss = table(ids).sum()
        with torch._C.DisableTorchFunction():
            loss = loss + table.weight.square().sum()
        with self.assertRaisesRegex(superoffload.UserError, "was read before its new value was there"):
            loss.backward()
        optimizer.zero_grad()

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


if __name__ == "__main__":
    unittest.main()
