"""What PyTorch's tests of its optimizers (test/test_optim.py) ask of AdamW, asked of superoffload.AdamW beside it.

Learning rates by group, schedulers, tensors as lr, convergence and states that torch wrote are in test_adamw_optimizer.
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
import collections
import copy
import io
import os
import sys
import unittest
import warnings

# First: it skips the tests where there is no PyTorch.
from optimizer_models import DEVICE, STEP, backward, difference, network, same_bits, small_units

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


class TheState(Case):
    """optimizer.state, by parameter."""

    def after_two_steps(self, cls, edit, dtype=torch.float32):
        a, b = leaf(), leaf(2.0, 3.0)
        a.data, b.data = a.data.to(dtype), b.data.to(dtype)
        optimizer = cls([a, b], lr=0.1, weight_decay=0.0)
        for gradient in (1.0, 0.5):
            stepped(optimizer, a, b, gradient=gradient)
        found = edit(optimizer, a, b)
        for _ in range(2):
            stepped(optimizer, a, b, gradient=-1.0)
        return a, b, optimizer.state_dict()["state"], self.plain(found)

    def test_edits(self):
        def in_place(o, a, b):
            for s in o.state.values():
                s["exp_avg"].zero_()

        def held(o, a, b):
            moment, view = o.state[a]["exp_avg"], o.state[b]["exp_avg_sq"][:1]
            whole = o.state[b]
            stepped(o, a, b)
            before = moment.clone(), view.clone(), float(whole["step"])
            moment.zero_()
            view.fill_(4.0)
            whole["exp_avg"] = torch.full_like(whole["exp_avg"], 2.0)
            return before

        def another_dict(o, a, b):
            o.state[a] = {"step": torch.tensor(7.0), "exp_avg": torch.ones_like(a), "exp_avg_sq": torch.ones_like(a)}
            own = o.state[a]["exp_avg"]
            stepped(o, a, b)
            return own

        def step_of_one(o, a, b):
            o.state[a]["step"].fill_(50)

        for edit in (
            lambda o, a, b: o.state.clear(),
            lambda o, a, b: setattr(o, "state", collections.defaultdict(dict)),
            lambda o, a, b: setattr(o, "state", collections.defaultdict(dict, {b: o.state[b]})),
            lambda o, a, b: setattr(o, "state", o.state),
            lambda o, a, b: o.state.pop(a) and None,
            lambda o, a, b: o.state.__delitem__(b),
            lambda o, a, b: o.state[a].clear(),
            lambda o, a, b: o.state.update({a: o.state.pop(b)}),
            in_place,
            held,
            another_dict,
            step_of_one,
        ):
            self.same(lambda cls, edit=edit: self.after_two_steps(cls, edit))

    def test_reading(self):
        def read(o, a, b):
            state = o.state
            self.assertTrue(state)
            self.assertIn(a, state)
            self.assertNotIn("a", state)
            self.assertIsNone(state.get("a"))
            self.assertEqual([list(state), len(state)], [[a, b], 2] if a is b else [list(state.keys()), 2])
            self.assertIsInstance(repr(state), str)
            copied = copy.deepcopy(state)
            self.assertIsInstance(copied, dict)
            self.assertIsInstance(state, dict)
            return [state[a], [s["step"] for s in state.values()], state.get(b), dict(state)[b], state.setdefault(a)]

        self.same(lambda cls: self.after_two_steps(cls, read))

    def test_edits_between_backward_and_step(self):
        """By then a part of the step has been done ahead, with the former state."""

        def run(cls):
            model = network()
            optimizer = cls(model.parameters(), lr=1e-2)
            for step in range(6):
                backward(model, step)
                if step == 3:
                    optimizer.state[model[0].weight]["step"].fill_(0)
                    optimizer.state[model[2].weight]["exp_avg"].mul_(3)
                    del optimizer.state[model[4].bias]
                if step == 4:
                    optimizer.state.clear()
                optimizer.step()
                optimizer.zero_grad()
            return list(model.parameters()), optimizer.state_dict()["state"]

        small_units(self)
        self.same(run)

    def test_before_a_step(self):
        for cls in BOTH:
            a = leaf()
            optimizer = cls([a])
            self.assertEqual([len(optimizer.state), dict(optimizer.state[a]), len(optimizer.state)], [0, {}, 1])
            stepped(optimizer, a)
            self.assertEqual(float(optimizer.state[a]["step"]), 1)

    def test_what_is_no_state(self):
        a = leaf()
        for state, text in (
            ({"step": 1}, "no 'exp_avg'"),
            ([], "is a list: give a dict"),
            ({"step": -1, "exp_avg": a, "exp_avg_sq": a}, "has step -1"),
            ({"step": 1, "exp_avg": 0.5, "exp_avg_sq": a}, "of type float"),
            ({"step": 1, "exp_avg": torch.ones(3), "exp_avg_sq": a}, "has shape"),
        ):
            optimizer = superoffload.AdamW([a])
            stepped(optimizer, a)
            optimizer.state[a] = state
            with self.refused(text):
                stepped(optimizer, a)
            del optimizer

    def test_bf16_masters_are_forgotten_with_the_state(self):
        a = leaf(1.0, 1.0)
        a.data = a.data.bfloat16()
        optimizer = superoffload.AdamW([a], lr=1e-3, weight_decay=0.0)
        stepped(optimizer, a)
        self.assertNotEqual(optimizer.state[a]["master"].tolist(), a.tolist())
        optimizer.state[a]["master"] += 0.0  # as it is
        values = a.tolist()
        optimizer.state.clear()
        self.assertEqual(a.tolist(), values)
        stepped(optimizer, a, gradient=0.0)
        self.assertEqual(optimizer.state[a]["master"].tolist(), a.tolist())

    def test_a_state_dict_is_no_part_of_it(self):
        a = leaf()
        optimizer = superoffload.AdamW([a], lr=0.1)
        stepped(optimizer, a)
        saved = optimizer.state_dict()
        before = copy.deepcopy(saved)
        optimizer.load_state_dict(saved)
        stepped(optimizer, a)
        self.assertTrue(same_bits(saved["state"], before["state"]))


class Loading(Case):
    def test_hooks_see_and_set_what_torchs_do(self):
        def run(cls):
            a, b, seen = leaf(), leaf(), []
            first, second = cls([a], lr=0.1), cls([b], lr=0.2)
            stepped(first, a)

            def before(optimizer, state):
                self.assertIs(type(optimizer), cls)
                seen.append(sorted(state["state"][0]))
                state = copy.deepcopy(state)
                state["state"][0]["step"] = torch.tensor(9.0)
                state["state"][0]["exp_avg"] *= 0
                state["param_groups"][0]["lr"] = 0.5
                return state

            def first_of_all(optimizer, state):
                seen.append("first")

            def after(optimizer):
                seen.append([float(optimizer.state[b]["step"]), optimizer.param_groups[0]["lr"]])
                optimizer.state[b]["exp_avg_sq"].fill_(0.25)
                optimizer.state["mine"] = 5

            second.register_load_state_dict_pre_hook(before)
            second.register_load_state_dict_pre_hook(first_of_all, prepend=True)
            second.register_load_state_dict_post_hook(after)
            second.load_state_dict(first.state_dict())
            stepped(second, b)
            return b, seen, second.state_dict()["state"]

        self.same(run)

    def test_hooks_of_state_dict(self):
        def run(cls):
            a = leaf()
            optimizer = cls([a], lr=0.1)
            stepped(optimizer, a)

            def before(optimizer):
                optimizer.state["mine"] = 1
                optimizer.state[a]["step"].fill_(4)

            def after(optimizer, state):
                state["state"]["added"] = len(optimizer.state)

            optimizer.register_state_dict_pre_hook(before)
            optimizer.register_state_dict_post_hook(after)
            return optimizer.state_dict()["state"], optimizer.state[a]["step"]

        self.same(run)

    def test_by_the_names_of_parameters(self):
        """As torch documents it for models whose parameters come in another order."""

        def by_name(optimizer, state):
            saved, own = state["param_groups"][0], optimizer.state_dict()["param_groups"][0]
            numbers = dict(zip(saved["param_names"], saved["params"]))
            states = {mine: state["state"][numbers[name]] for mine, name in zip(own["params"], own["param_names"])}
            return {"state": states, "param_groups": [{**saved, "param_names": own["param_names"]}]}

        def run(cls):
            a, b, c, d = leaf(), leaf(2.0, 2.0), leaf(), leaf(2.0, 2.0)
            first = cls([("a", a), ("b", b)], lr=0.1)
            stepped(first, a, b)
            stepped(first, a)
            second = cls([("b", d), ("a", c)], lr=0.1)
            second.register_load_state_dict_pre_hook(by_name)
            second.load_state_dict(first.state_dict())
            stepped(second, c, d)
            return c, d, second.state_dict()["state"]

        self.same(run)

    def test_older_and_other_states(self):
        def run(cls):
            a, b = leaf(), leaf()
            optimizer = cls([a, b], lr=0.1)
            stepped(optimizer, a, b)
            state = optimizer.state_dict()
            for group in state["param_groups"]:
                for key in ("maximize", "foreach", "fused", "differentiable", "capturable", "amsgrad"):
                    group.pop(key, None)
            state["state"][0]["step"] = 1.0  # a number, as it once was
            state["state"][0]["own"] = 3
            state["state"]["other"] = {"kept": True}
            del state["state"][1]
            optimizer.load_state_dict(state)
            stepped(optimizer, a, b)
            return a, b, optimizer.state_dict()["state"], optimizer.param_groups[0]["maximize"]

        self.same(run)

    def test_a_saved_file(self):
        model = network()
        optimizer = superoffload.AdamW(model.parameters())
        backward(model, 0)
        optimizer.step()
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        other = superoffload.AdamW(network().parameters())
        other.load_state_dict(torch.load(file, weights_only=True))
        self.assertTrue(same_bits(other.state_dict(), optimizer.state_dict()))

    def test_what_fails_changes_nothing(self):
        a, b = leaf(), leaf()
        optimizer = superoffload.AdamW([a, b], lr=0.1)
        stepped(optimizer, a, b)
        good = optimizer.state_dict()
        for edit in (
            lambda s: s["state"][1].pop("exp_avg_sq"),
            lambda s: s["state"][1].update(exp_avg=torch.ones(5)),
            lambda s: s["param_groups"][0].update(maximize=True),
            lambda s: s["param_groups"][0].pop("betas"),
            lambda s: s["param_groups"].append(dict(s["param_groups"][0])),
            lambda s: s["param_groups"][0]["params"].append(2),
        ):
            bad = copy.deepcopy(good)
            bad["param_groups"][0]["lr"] = 7.0
            edit(bad)
            with self.assertRaises(ValueError):
                optimizer.load_state_dict(bad)
            self.assertTrue(same_bits(optimizer.state_dict(), good))

    def test_gradients_stay(self):
        def run(cls):
            a = leaf()
            optimizer = cls([a], lr=0.1)
            stepped(optimizer, a)
            state = copy.deepcopy(optimizer.state_dict())
            stepped(optimizer, a)
            (3 * a).sum().backward()
            optimizer.load_state_dict(state)
            optimizer.step()
            return a

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
