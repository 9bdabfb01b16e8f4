"""optimizer.state, as torch.optim.AdamW has it, of states that the engine has.

A parameter's state is copied into host memory when somebody asks for it. What is done to that copy counts from the next
step on, and whoever still holds it after a step, or a tensor of it, finds the new state there.
"""
import collections
import copy
import weakref
from collections.abc import Mapping, MutableMapping

import torch

from superoffload import errors

_NEEDED = ("step", "exp_avg", "exp_avg_sq")
KEYS = _NEEDED + ("master",)


class Entry(dict):
    """The state of a parameter; of a dict there are no weak references."""


class State(MutableMapping, dict):
    """By parameter, its state, and what else somebody puts here.

    engine: has knows(parameter), has_state_of(parameter), state_of(parameter), put_state(parameter, state) and
    reset_state(parameter). What lies in the dict itself are copies that somebody may have changed, states of parameters
    that the engine does not know, and other things.
    """

    def __init__(self, engine):
        self._engine = weakref.ref(engine)
        self._gone = {}  # by id, parameters whose state was taken away, which the engine is still to be told
        self._others = {}  # by id of a parameter, what its state has beside KEYS
        self._copies = False  # whether items() gives copies that nobody needs to look after

    # ---- As a dict ----

    def _is_engines(self, key):
        return isinstance(key, torch.Tensor) and id(key) not in self._gone and self._engine().has_state_of(key)

    def __contains__(self, key):
        return dict.__contains__(self, key) or self._is_engines(key)

    def __getitem__(self, key):
        if self._copies:
            return self.copy_of(key)
        if not dict.__contains__(self, key):
            dict.__setitem__(self, key, Entry(self._read(key) if self._is_engines(key) else {}))
        return dict.__getitem__(self, key)

    def __setitem__(self, key, value):
        if isinstance(key, torch.Tensor) and isinstance(value, Mapping) and not isinstance(value, Entry):
            value = Entry(value)
        dict.__setitem__(self, key, value)

    def __delitem__(self, key):
        if key not in self:
            raise KeyError(key)
        if self._is_engines(key):
            self._gone[id(key)] = key
        dict.pop(self, key, None)

    def __iter__(self):
        keys = {id(p): p for p in self._engine().all_parameters() if p in self}
        return iter([*keys.values(), *(key for key in dict.keys(self) if id(key) not in keys)])

    def __len__(self):
        return sum(1 for _ in self)

    def __bool__(self):
        return dict.__len__(self) > 0 or any(map(self._is_engines, self._engine().all_parameters()))

    def get(self, key, default=None):
        return self[key] if key in self else default

    def setdefault(self, key, default=None):
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key, *default):
        if key not in self and default:
            return default[0]
        value = self[key] if key in self else None
        del self[key]
        return value

    def clear(self):
        for key in list(self):
            del self[key]

    def copy(self):
        return collections.defaultdict(dict, self.items())

    def __or__(self, other):
        return self.copy() | other

    def __ror__(self, other):
        return other | self.copy()

    def __ior__(self, other):
        self.update(other)
        return self

    def __repr__(self):
        return repr(self.copy())

    def __reduce__(self):
        return collections.defaultdict, (dict,), None, None, iter(self.items())

    # ---- Between this and the engine ----

    def _read(self, parameter):
        return self._engine().state_of(parameter) | self._others.get(id(parameter), {})

    def copy_of(self, key):
        """What is at the key, as it is now, in memory of its own."""
        if not dict.__contains__(self, key):
            return self._read(key)
        return copy.deepcopy(dict.__getitem__(self, key))

    def give_copies(self, flag):
        self._copies = flag

    def orphans(self):
        """Parameters with a state that are in no group."""
        known = {id(p) for p in self._engine().all_parameters()}
        return [key for key in dict.keys(self) if isinstance(key, torch.Tensor) and id(key) not in known]

    def has_copy(self, parameter):
        """Whether the state is here, or nowhere, rather than the engine's."""
        return dict.__contains__(self, parameter) or id(parameter) in self._gone

    def write(self, name_of):
        """Tells the engine of all changes. Returns whether there may have been any."""
        engine = self._engine()
        entries = [(p, dict.__getitem__(self, p)) for p in engine.all_parameters() if dict.__contains__(self, p)]
        entries = [(p, entry) for p, entry in entries if engine.knows(p)]
        for p, entry in entries:
            check(name_of(p), p, entry)
        gone = [p for p in self._gone.values() if engine.knows(p) and not dict.__contains__(self, p)]
        self._gone.clear()
        for p in gone:
            self._others.pop(id(p), None)
            engine.reset_state(p)
        for p, entry in entries:
            self.put(p, entry)
        return bool(gone or entries)

    def put(self, parameter, entry):
        """Gives the engine a state that check() has passed."""
        self._others.pop(id(parameter), None)
        others = {key: value for key, value in entry.items() if key not in KEYS}
        if others:
            self._others[id(parameter)] = others
        if any(key in entry for key in KEYS):
            self._engine().put_state(parameter, entry)
        elif self._engine().has_state_of(parameter):
            self._engine().reset_state(parameter)

    def keep(self, parameter, entry):
        """Of a parameter that the engine does not know."""
        dict.__setitem__(self, parameter, Entry(entry))

    def begin_anew(self):
        """The engine has no state of any parameter."""
        self._gone.clear()

    def forget(self):
        """As begin_anew(), and there is none here."""
        self._gone.clear()
        self._others.clear()
        dict.clear(self)

    def renew(self):
        """After a step: lets go of copies that nobody else holds, and brings the others up to date."""
        engine = self._engine()
        for parameter in [p for p in engine.all_parameters() if dict.__contains__(self, p) and engine.knows(p)]:
            entry = dict.pop(self, parameter)
            own = weakref.ref(entry)
            tensors = {key: weakref.ref(entry[key]) for key in KEYS if isinstance(entry.get(key), torch.Tensor)}
            del entry
            entry = own()
            tensors = {key: tensor() for key, tensor in tensors.items()}
            held = entry is not None or any(tensor is not None for tensor in tensors.values())
            if not held or not engine.has_state_of(parameter):
                continue
            entry = Entry(self._others.get(id(parameter), {})) if entry is None else entry
            for key, value in engine.state_of(parameter).items():
                former = entry.get(key, tensors.get(key))
                if isinstance(former, torch.Tensor) and former.shape == value.shape:
                    with torch.no_grad():
                        value = former.copy_(value)
                entry[key] = value
            dict.__setitem__(self, parameter, entry)


def check(name, parameter, state):
    """Refuses what is no state of an AdamW for the parameter. Without any key of one it is none."""
    if not isinstance(state, Mapping):
        raise errors.UserError(f"the state of {name} is a {type(state).__name__}: give a dict")
    if not any(key in state for key in KEYS):
        return
    for key in _NEEDED:
        if key not in state:
            raise errors.UserError(f"the state of {name} has no {key!r}: it is no state of an AdamW")
    for key in KEYS[1:]:
        value = state.get(key)
        if key == "master" and key not in state:
            continue
        if not isinstance(value, torch.Tensor):
            raise errors.UserError(f"the state of {name} has {key!r} of type {type(value).__name__}: give a tensor")
        if value.shape != parameter.shape:
            raise errors.UserError(
                f"the state of {name} has shape {tuple(value.shape)}, and the parameter {tuple(parameter.shape)}: it "
                "is another model's"
            )
    try:
        step = float(state["step"])
    except (TypeError, ValueError, RuntimeError):
        step = -1
    if not (0 <= step < 2**53 and step == int(step)):
        raise errors.UserError(f"the state of {name} has step {state['step']}: give a whole number from 0 on")
