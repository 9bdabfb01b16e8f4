"""What PyTorch's tests of its optimizers (test/test_optim.py) ask of AdamW, asked of superoffload.AdamW beside it.

Learning rates by group, schedulers, tensors as lr, convergence and states that torch wrote are in test_adamw_optimizer;
edits and loading of the state in test_state_optimizer.
Refused, so in none of the comparisons here:
- amsgrad, maximize, differentiable: not implemented (test_settings_that_come_later).
- capturable, fused, foreach as arguments: ways to compute on one device, of which this optimizer knows none.
- complex parameters, sparse gradients: parameters are fp32 or bf16, and dense (test_misuse_optimizer).
- parameters of several devices in one optimizer: there is one engine for one device (test_misuse_optimizer).
- deepcopy and pickle of an optimizer: its engine has threads; load_state_dict() makes a copy (test_misuse_optimizer).
- step() without any gradient: gradients leave param.grad, so it is nearly always a mistake (test_misuse_optimizer).
- one parameter twice: it would be updated twice; torch warns, and will refuse it (test_settings_that_come_later).
- a GradScaler: gradients are taken as they come (test_misuse_optimizer).
"""
import os
import unittest
import warnings

# First: it skips the tests where there is no PyTorch.
from optimizer_models import DEVICE, network
from beside_torch import BOTH, Case, leaf, stepped

import superoffload
import torch


class Groups(Case):
    """param_groups are a list of dicts that anybody may edit between steps."""

    def edited(self, edit, split=False):
        def run(cls):
            a, b, c = leaf(), leaf(2.0, 2.0), leaf(3.0, 3.0)
            groups = [{"params": [a], "lr": 0.1}, {"params": [b, c], "lr": 0.01}] if split else [a, b, c]
            optimizer = cls(groups, lr=0.1, weight_decay=0.1)
            for step in range(4):
                for p in (a, b, c):
                    p.grad = None
                (a.sum() + 2 * b.sum() + (c * c).sum()).backward()
                if step == 2:
                    edit(optimizer, a, b, c)
                optimizer.step()
            return a, b, c, len(optimizer.state), a.grad is None or a.grad.sum()

        mine, other = (run(cls) for cls in BOTH)
        self.close(self.plain(mine[:4]), self.plain(other[:4]))
        return mine, other

    def test_edits_of_params(self):
        def new():
            p = leaf()
            p.grad = torch.ones_like(p)
            return p

        def replace(o, a, b, c):
            o.param_groups[0]["params"][0] = new()

        def again(o, a, b, c):
            p = o.param_groups[0]["params"].pop(1)
            o.step()
            a.grad, c.grad, b.grad = torch.ones_like(a), torch.ones_like(c), torch.ones_like(b)
            o.param_groups[0]["params"].append(p)

        for edit in (
            lambda o, a, b, c: o.param_groups[0]["params"].pop(0),
            lambda o, a, b, c: o.param_groups[0]["params"].reverse(),
            lambda o, a, b, c: o.param_groups[0]["params"].append(new()),
            lambda o, a, b, c: o.param_groups[0].update(params=(c, a)),
            lambda o, a, b, c: o.param_groups[0]["params"].clear() or o.param_groups[0]["params"].extend([c]),
            replace,
            again,
        ):
            self.edited(edit)

    def test_edits_of_groups(self):
        for edit in (
            lambda o, a, b, c: o.param_groups.pop(0),
            lambda o, a, b, c: o.param_groups.pop(),
            lambda o, a, b, c: o.param_groups.reverse(),
            lambda o, a, b, c: o.param_groups[0]["params"].append(o.param_groups[1]["params"].pop()),
            lambda o, a, b, c: setattr(o, "param_groups", [dict(g) for g in o.param_groups[::-1]]),
            lambda o, a, b, c: o.param_groups[1].update(lr=0.5, betas=(0.5, 0.9), eps=1e-3, weight_decay=0.0),
            lambda o, a, b, c: o.param_groups[1].update(lr=torch.tensor(0.5)),
            lambda o, a, b, c: o.param_groups[1].update(name="mine", foreach=False),
            lambda o, a, b, c: c.requires_grad_(False),
        ):
            self.edited(edit, split=True)

    def test_gradients_of_a_parameter_in_no_group_stay(self):
        a, b = leaf(), leaf()
        optimizer = superoffload.AdamW([a, b])
        stepped(optimizer, a, b)
        optimizer.param_groups[0]["params"].pop(0)
        (a.sum() + b.sum()).backward()
        optimizer.step()
        self.assertEqual(a.grad.tolist(), [1, 1])
        self.assertIsNone(b.grad)

    def test_settings_that_come_later(self):
        for name in ("amsgrad", "maximize", "differentiable"):
            a = leaf()
            optimizer = superoffload.AdamW([a])
            stepped(optimizer, a)
            optimizer.param_groups[0][name] = True
            with self.refused(f"{name}=True is not implemented"):
                stepped(optimizer, a)
            optimizer.param_groups[0][name] = False
            optimizer.step()
        del optimizer
        for change, text in (
            ({"lr": -1.0}, "lr is -1.0"),
            ({"params": a}, "no list of tensors"),
            ({"params": iter([a])}, "no list of tensors"),
            ({"params": [1]}, "no list of tensors"),
            ({"params": [a, a]}, "share memory"),
        ):
            optimizer = superoffload.AdamW([a])
            optimizer.param_groups[0].update(change)
            with self.refused(text):
                stepped(optimizer, a)
            del optimizer

    def test_a_state_in_no_group(self):
        a, b = leaf(), leaf()
        optimizer = superoffload.AdamW([a, b])
        stepped(optimizer, a, b)
        optimizer.param_groups[0]["params"].pop(0)
        stepped(optimizer, b)
        with self.refused("state of a parameter that is in no group"):
            optimizer.state_dict()
        del optimizer.state[a]
        self.assertEqual(list(optimizer.state_dict()["state"]), [0])

    def test_frozen_parameters_keep_their_state(self):
        def run(cls):
            a, b, c = leaf(), leaf(), leaf()
            c.requires_grad_(False)
            optimizer = cls([a, b, c], lr=0.1)
            stepped(optimizer, a, b)
            a.requires_grad_(False)
            c.requires_grad_(True)
            a.grad = None
            stepped(optimizer, b, c)
            a.requires_grad_(True)
            stepped(optimizer, a, b, c, gradient=-1.0)
            return a, b, c, optimizer.state_dict()["state"]

        mine, other = (run(cls) for cls in BOTH)
        self.close(self.plain(mine), self.plain(other))

    def test_a_leaf_without_requires_grad(self):
        def run(cls):
            a = torch.ones(2, device=DEVICE)
            optimizer = cls([a], lr=0.1)
            stepped(optimizer, a)
            return a

        self.same(run)

    def test_named_parameters(self):
        for cls in BOTH:
            optimizer = cls(network().named_parameters())
            self.assertEqual(optimizer.state_dict()["param_groups"][0]["param_names"][0], "0.weight")

    def test_closures_printing_and_step_hooks(self):
        def run(cls):
            a, calls = leaf(), []
            optimizer = cls([a], lr=0.1)
            optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
            optimizer.register_step_post_hook(lambda *_: calls.append("after"))

            def closure():
                optimizer.zero_grad()
                loss = a.square().sum()
                loss.backward()
                return loss

            self.assertIn("lr: 0.1", repr(optimizer))
            return optimizer.step(closure), a, calls

        self.same(run)


@unittest.skipUnless(hasattr(os, "fork"), "needs fork()")
@unittest.skipIf(DEVICE.type == "cuda", "a forked process has no CUDA")
class Forks(Case):
    def in_a_child(self, work):
        """What work() gives in a forked process, or the error there."""
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # there are threads
            child = os.fork()
        if child == 0:
            try:
                text = f"gave {work()}"
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            os.write(writer, text.encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as file:
            text = file.read()
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        return text

    def test_an_optimizer_of_the_parents(self):
        a = leaf()
        optimizer = superoffload.AdamW([a], lr=0.1)
        stepped(optimizer, a)
        values = a.tolist()

        def anew():
            nonlocal optimizer
            (a * a).sum().backward()  # no hook of the parent's
            before = optimizer
            optimizer = superoffload.AdamW([a], lr=0.1)
            optimizer.step()
            del before
            return a.tolist() != values

        for work in (
            lambda: stepped(optimizer, a),
            lambda: optimizer.state_dict(),
            lambda: optimizer.load_state_dict({"state": {}, "param_groups": [{**optimizer.defaults, "params": [0]}]}),
            lambda: optimizer.clip_grad_norm_(1.0),
            lambda: optimizer.add_param_group({"params": [leaf()]}),
            lambda: optimizer.state[a],
        ):
            self.assertIn("UserError: this optimizer is the parent's", self.in_a_child(work))
        self.assertEqual(self.in_a_child(anew), "gave True")
        stepped(optimizer, a)
        self.assertEqual(float(optimizer.state[a]["step"]), 2)


if __name__ == "__main__":
    unittest.main()
