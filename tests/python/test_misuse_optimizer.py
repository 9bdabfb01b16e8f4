"""superoffload.AdamW used wrongly: each time one clear error."""
import copy
import gc
import pickle
import types
import unittest
from unittest import mock

# First: it skips the tests where there is no PyTorch.
from optimizer_models import DEVICE, backward, batch, difference, network

import torch
from torch import nn

import superoffload
from superoffload import memory as memory_module
from superoffload import parameters as parameters_module


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
        with self.refused("device_memory is '8GB': give a number of bytes, such as 8 << 30, or"):
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
        settings |= {"bucket_elements": 1 << 10, "cpu_part": 0, "cpu_parts": 1}
        takes = []
        for spare in memory_module._SPARE_STATE:
            takes.append(memory_module._engine.memory_of(tensors, settings | {"spare_state": spare})[1])
        self.assertGreater(takes[0], takes[-1])
        for available, expected in ((takes[0], 0.25), (takes[0] - 1, 0.1), (takes[-1], 0.02)):
            with mock.patch.object(memory_module._engine, "available_host_memory", lambda: (available, "")):
                memory_module.check(tensors, settings)
            self.assertEqual(settings["spare_state"], expected)

    def test_state_is_moved_to_the_memory_of_a_gpu_that_has_its_own(self):
        for device, advised in ((1, True), (0, False)):
            with mock.patch.object(memory_module._engine, "memory_of", lambda *_: (device, 1 << 60, "a table")):
                with self.refused("takes .* of host memory") as refusal:
                    memory_module.check([], {})
            self.assertEqual("moves state to the GPU" in str(refusal.exception), advised)

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

    def test_parameters_that_are_replaced_by_others(self):
        for replace, text in (
            (lambda p: p.to(torch.bfloat16), "was torch.float32 of shape .* when its state was made, and is torch.bf"),
            (lambda p: p.detach().repeat(2, 1), "when its state was made, and is torch.float32 of shape"),
        ):
            model = network()
            optimizer = superoffload.AdamW(model.parameters())
            backward(model, 0)
            optimizer.step()
            values = replace(model[0].weight)
            model[0].weight.data = values
            with self.refused(text):
                optimizer.state_dict()

    def test_parameters_without_memory(self):
        model = network()
        model[2].weight.untyped_storage().resize_(0)
        with self.refused("2.weight has no memory"):
            superoffload.AdamW(model.named_parameters())

    def test_parameters_of_several_devices(self):
        managed = [parameters_module.Managed(p, 0, name, 0) for name, p in network().named_parameters()]
        other = torch.device("cuda", 1)
        managed[2].values = types.SimpleNamespace(device=other)
        with self.refused(f"^2.weight is on {other}, and 0.weight on {DEVICE}: make an optimizer for the"):
            parameters_module.check_parameters(managed, None)

    def test_backward_twice(self):
        model, twin = network(), network()
        optimizer, other = (superoffload.AdamW(m.parameters(), lr=0.1) for m in (model, twin))
        x, _ = batch(0)
        loss = model(x).square().mean()
        loss.backward()
        with self.assertRaisesRegex(RuntimeError, "backward through the graph a second time"):  # torch's own
            loss.backward()
        twin(x).square().mean().backward()  # what there was before the second one counts
        optimizer.step()
        other.step()
        self.assertEqual(difference(model, twin), 0)

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
