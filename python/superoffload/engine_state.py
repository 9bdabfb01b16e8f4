"""The optimizer state of the parameters that the engine has."""
import itertools

import torch

from superoffload import parameters, sharding

MASTER, EXP_AVG, EXP_AVG_SQ = range(3)


class EngineState:
    """The half of EngineParameters that state.State asks, by parameter."""

    def all_parameters(self):
        return itertools.chain.from_iterable(group["params"] for group in self.param_groups)

    def knows(self, parameter):
        """Whether the engine has the parameter."""
        return id(parameter) in self._index or id(parameter) in self._absent

    def has_state_of(self, parameter):
        if id(parameter) in self._absent:
            return self._absent[id(parameter)].updates > 0
        return id(parameter) in self._index and self._engine.updates(self._index[id(parameter)]) > 0

    def state_of(self, parameter):
        if id(parameter) in self._absent:
            return self._absent_state(self._absent[id(parameter)])
        return self._read_state(self._index[id(parameter)])

    def put_state(self, parameter, state):
        if id(parameter) in self._absent:
            self._absent[id(parameter)].updates = int(state["step"])
        else:
            self._write_state(self._index[id(parameter)], state)

    def reset_state(self, parameter):
        if id(parameter) in self._absent:
            self._absent[id(parameter)].updates = 0
            return
        index = self._index[id(parameter)]
        values = self._managed[index].values.detach()
        zeros = torch.zeros_like(values)
        for array, written in ((EXP_AVG, zeros), (EXP_AVG_SQ, zeros), (MASTER, values)):
            self._write(array, index, written)
        self._engine.set_updates(index, 0)

    def _name(self, parameter):
        if id(parameter) in self._index:
            return self._managed[self._index[id(parameter)]].name
        return "a parameter"

    def _read(self, array, index):
        values = self._managed[index].empty(torch.float32, "cpu")
        with self._on_stream():
            self._engine.read(array, index, sharding.local_of(values).data_ptr())
        return values

    def _read_state(self, index):
        """The state of a parameter, as in a state_dict."""
        state = {
            "step": torch.tensor(float(self._engine.updates(index))),
            "exp_avg": self._read(EXP_AVG, index),
            "exp_avg_sq": self._read(EXP_AVG_SQ, index),
        }
        if self._managed[index].dtype == torch.bfloat16:
            state["master"] = self._read(MASTER, index)
        return state

    def _absent_state(self, absent):
        values = parameters.host_like(absent.parameter)
        state = {"step": torch.tensor(float(absent.updates)), "exp_avg": values, "exp_avg_sq": values}
        return state | ({"master": values} if absent.parameter.dtype == torch.bfloat16 else {})

    def _write(self, array, index, values):
        held = parameters.host_like(self._managed[index].values).copy_(values.detach())
        with self._on_stream():
            self._engine.write(array, index, held.data_ptr())

    def _write_state(self, index, state):
        managed = self._managed[index]
        for array, key in ((EXP_AVG, "exp_avg"), (EXP_AVG_SQ, "exp_avg_sq"), (MASTER, "master")):
            if key not in state:
                continue
            values = sharding.local_values(state[key], managed.parameter)
            self._write(array, index, parameters.master_of(managed.values, values) if array == MASTER else values)
        self._engine.set_updates(index, int(state["step"]))
