"""superoffload.AdamW on a GPU."""
import unittest

# First: it skips the tests where there is no PyTorch.
from optimizer_models import DEVICE, backward, difference, small_units

import torch
from torch import nn

import superoffload


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


if __name__ == "__main__":
    unittest.main()
