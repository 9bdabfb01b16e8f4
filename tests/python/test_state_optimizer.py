"""What PyTorch's tests of its optimizers (test/test_optim.py) ask of AdamW's state, asked of superoffload.AdamW beside it:
edits of optimizer.state, state_dict() and load_state_dict() with their hooks."""
import collections
import copy
import io
import unittest

# First: it skips the tests where there is no PyTorch.
from optimizer_models import backward, network, same_bits, small_units
from beside_torch import BOTH, Case, leaf, stepped

import superoffload
import torch


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


if __name__ == "__main__":
    unittest.main()
