"""The engine's half of the optimizer: the parameters it updates, their gradients on the way in, their state on the way
out.
"""
import contextlib
import itertools
import warnings
import weakref

import torch

from superoffload import _engine, awaited, errors, forks, groups, memory, parameters, sharding, tables
from superoffload.engine_state import MASTER, EngineState
from superoffload.state import State

# After these PyTorch has reserved what a step takes.
_STEPS_BEFORE_SPLIT = 3


class EngineParameters(EngineState):
    """What superoffload.AdamW has beside torch.optim.Optimizer, whose param_groups it reads."""

    def _begin(self, settings, *, max_grad_norm, under_forward, offload_ratio, device_memory):
        self._settings = settings
        self._max_grad_norm = self._limit = max_grad_norm  # _limit: of the step under way
        self._under_forward, self._offload_ratio = under_forward, offload_ratio
        # With "auto", the steps that are still to be seen before the state is split.
        self._until_split = _STEPS_BEFORE_SPLIT if device_memory == "auto" else 0
        self._device_memory = None if device_memory == "auto" else device_memory
        self._awaited = None  # awaited.Awaited, if step() need not wait for all new values
        self._device, self._device_units = torch.device("cpu"), 0
        self._engine = None
        self._built_of = None  # _structure() that the engine was made of
        self._state = State(self)
        self._peers = None  # sharding.Peers, if other processes have shards of the same parameters
        self._managed, self._index = [], {}  # of parameters.Managed, in the engine's order; and by id of the parameter
        self._absent = {}  # by id, parameters.Absent: of which other processes have all
        forks.watch(self)

    def _structure(self):
        return [tuple(map(id, group["params"])) for group in self.param_groups]

    def leave_to_parent(self):
        """For forks: in a child."""
        engine, self._engine, self._awaited = self._engine, forks.Left(), None
        self._release()
        return engine

    @contextlib.contextmanager
    def _on_stream(self):
        """What the engine enqueues comes in the order of the GPU stream that is PyTorch's current one."""
        if self._device.type == "cpu":
            yield
            return
        with torch.cuda.device(self._device):  # the engine makes it the thread's, too
            self._engine.use_stream(torch.cuda.current_stream().cuda_stream)
            yield

    # ---- Making and leaving the engine ----

    def _build(self, states):
        """Makes the engine for the parameters as they are; `states`: by id of the parameter, as in a state_dict."""
        named = [
            (_name_of(group, number, position), parameter, number)
            for number, group in enumerate(self.param_groups)
            for position, parameter in enumerate(group["params"])
            if parameters.is_trained(parameter)
        ]
        peers = sharding.peers_of([(name, parameter) for name, parameter, _ in named])
        managed = [
            parameters.Managed(parameter, number, name, position)
            for position, (name, parameter, number) in enumerate(named)
            if sharding.local_of(parameter).numel() > 0
        ]
        parameters.check_parameters(managed, self)
        self._release()
        self._built_of = self._structure()
        self._engine = _NoEngine()  # before there is another one, since memory may not do for two
        self._managed, self._peers = managed, peers
        self._index = {id(m.parameter): index for index, m in enumerate(managed)}
        self._absent = {id(p): parameters.Absent(p) for _, p, _ in named if id(p) not in self._index}
        if managed:
            self._device = managed[0].values.device
            for m, unit in zip(managed, parameters.units(managed)):
                m.unit = unit
        self._make_engine()
        reference = weakref.ref(self)
        for index, m in enumerate(managed):
            if id(m.parameter) in states:
                self._write_state(index, states[id(m.parameter)])
            parameters.owners[id(m.parameter)] = reference
            if m.parameter.requires_grad:
                m.handle = m.parameter.register_post_accumulate_grad_hook(_hook_of(reference))
        for key in self._absent.keys() & states.keys():
            self._absent[key].updates = int(states[key]["step"])
        if states:
            with self._on_stream():
                self._engine.upload()
        self._mark_changed(range(len(managed)))

    def _make_engine(self):
        on_gpu = self._device.type == "cuda"
        under_forward = on_gpu if self._under_forward is None else self._under_forward
        tensors = [
            (m.name, m.address, m.dtype == torch.bfloat16, m.values.numel(), m.unit, m.group) for m in self._managed
        ]
        part, parts = sharding.cpu_part()
        self._device_units = memory.device_units(
            self._managed, self._settings["moment_bits"], self._offload_ratio, self._device_memory
        )
        settings = self._settings | {
            "gpu": self._device.index if on_gpu else -1,
            "device_units": self._device_units,
            "awaits_updates": not under_forward,
            "max_grad_norm": self._max_grad_norm,
            "bucket_elements": parameters.bucket_elements(self._managed),
            "cpu_part": part,
            "cpu_parts": parts,
        }
        with torch.cuda.device(self._device) if on_gpu else contextlib.nullcontext():
            if on_gpu:
                torch.cuda.synchronize()  # what writes the parameters
                torch.cuda.empty_cache()  # the engine's memory on the GPU is not PyTorch's
            self._check_memory(tensors, settings)
            if self._managed:
                self._engine = _engine.TensorOptimizer(tensors, settings)
        self._awaited = awaited.Awaited(self._managed, self) if under_forward and self._managed else None

    def _check_memory(self, tensors, settings):
        error = None
        try:
            if self._managed:
                memory.check(tensors, settings)
            elif self._peers is not None:
                error = errors.UserError("this process has no element of any parameter: train with fewer processes")
        except errors.UserError as failure:
            error = failure
        if self._peers is not None:
            self._peers.agree(error)
        if error is not None:
            raise error

    def _rebuild(self):
        """Makes the engine anew for other parameters, or where they are now; state stays, and gradients of the step go
        back to param.grad.
        """
        self._await_all()
        states, gradients = [], []
        for index, managed in enumerate(self._managed):
            if self._engine.updates(index) > 0 and not self._state.has_copy(managed.parameter):
                managed.check_move()
                states.append((managed.parameter, self._state.copy_of(managed.parameter)))
            if self._engine.has_gradient(index):
                gradients.append((managed.parameter, self._read_gradient(index)))
        for absent in self._absent.values():
            if absent.updates > 0 and not self._state.has_copy(absent.parameter):
                states.append((absent.parameter, self._state.copy_of(absent.parameter)))
            if absent.has_gradient:
                gradients.append((absent.parameter, torch.zeros_like(absent.parameter)))
        self._build({id(parameter): state for parameter, state in states})
        self._state.begin_anew()
        for parameter, state in states:
            if not self.knows(parameter):  # frozen, or in no group any more
                self._state.keep(parameter, state)
        for parameter, gradient in gradients:
            gradient = gradient.to(parameter.device, parameter.dtype)
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def _release(self):
        for managed in self._managed:
            if managed.handle is not None:
                managed.handle.remove()
            parameters.owners.pop(id(managed.parameter), None)
        self._managed = []


    def _is_new(self):
        return not self._engine.has_gradients() and not self._state

    # ---- Gradients ----

    def _sync(self):
        """The engine has the parameters that there are, where they are, and their values."""
        self._await_all()
        groups.check_lists(self.param_groups)
        if (
            self._built_of != self._structure()
            or any(parameters.is_trained(p) and not self.knows(p) for p in self.all_parameters())  # unfrozen since
            or any(parameters.can_be_followed(managed) and managed.has_moved() for managed in self._managed)
        ):
            self._rebuild()
        self._read_changed()
        if self._state.write(self._name):
            with self._on_stream():
                self._engine.upload()

    def _collect(self):
        """All gradients since the last step are the engine's, and all parameters that have one."""
        for group in self.param_groups:
            groups.check_group(group, self._settings["moment_bits"])
        self._sync()
        for managed in self._managed:
            if managed.parameter.grad is not None:  # assigned by hand, from before the optimizer, or of DDP
                self._take(managed)
        for absent in self._absent.values():
            absent.collect()

    def _take_from_backward(self, managed):
        if self._awaited is not None and self._awaited.awaits(managed.parameter):
            rows = self._awaited.rows_of(managed.parameter)
            if rows is None or tables.has_others(sharding.local_of(managed.parameter.grad), rows):
                raise errors.UserError(
                    f"{managed.name} was read before its new value was there, in a way that cannot be seen (a CUDA "
                    "graph, a kernel of another library): make the optimizer with under_forward=False"
                )
            self._awaited.meet(managed.parameter)
        if managed.parameter.is_cuda and torch.cuda.is_current_stream_capturing():
            raise errors.UserError("a CUDA graph captures backward(), whose gradients this optimizer takes: capture "
                                   "the forward pass alone")
        if parameters.can_be_followed(managed) and (sharding.are_added_up_later() or managed.has_moved()):
            return  # until step()
        self._take(managed)

    def _take(self, managed):
        """Takes the gradient out of param.grad, whose memory may be used anew in the current stream's order."""
        parameter, gradient = managed.parameter, sharding.gradient_of(managed.parameter, managed.name)
        managed.check_place("it is spread over processes")
        if gradient.is_sparse:
            raise errors.UserError(f"{managed.name} has a sparse gradient: make its module with sparse=False")
        if gradient.dtype != managed.dtype or gradient.stride() != managed.values.stride():
            gradient = torch.empty_like(managed.values, requires_grad=False).copy_(gradient)
        if managed.was_written():
            self._read_changed()
        parameter.grad = None
        index = self._index[id(parameter)]
        with self._on_stream():
            if gradient.is_cuda:  # it may have been computed on another stream
                gradient.record_stream(torch.cuda.current_stream())
            may_forecast = self._engine.add_gradient(index, gradient.data_ptr(), managed.dtype == torch.bfloat16)
            if may_forecast and self._built_of == self._structure():
                self._engine.forecast(groups.updates_of(self.param_groups))

    def _statistics(self):
        """Of all processes' gradients, by name; empty where there is this process alone."""
        if self._peers is None:
            return []
        with self._on_stream():
            own = self._engine.gradient_statistics(groups.updates_of(self.param_groups))
        return self._peers.statistics([m.position for m in self._managed], own)

    def _split_state(self):
        """After a step. device_memory="auto": state moves to the GPU's memory that a few steps have left free."""
        if self._until_split == 0:
            return
        self._until_split -= 1
        if self._until_split > 0:
            return
        holds = memory.holds_a_copy(self._managed)
        if self._peers is not None:
            holds = self._peers.all_of(holds)
        if not holds:
            warnings.warn(
                'device_memory="auto" leaves all state in host memory, which does not hold the copy that moving takes: '
                "give device_memory a number of bytes instead",
                stacklevel=4,
            )
            return
        self._device_memory = memory.room_for_state(self._device)
        self._rebuild()

    def _read_gradient(self, index):
        dtype = torch.bfloat16 if self._engine.has_bf16_gradients() else torch.float32
        gradient = self._managed[index].empty(dtype, self._device)
        with self._on_stream():
            self._engine.read_gradient(index, sharding.local_of(gradient).data_ptr())
        return gradient

    # ---- Values ----

    def require(self, index):
        """For awaited.Awaited: the new value of a parameter, by its index, and of others, whose indices it returns."""
        self._engine.has_gradients()  # refused in a forked process
        unit = self._managed[index].unit
        met = [i for i, managed in enumerate(self._managed) if managed.unit == unit]
        with torch._C.DisableTorchFunction():  # to ask for its address is no read
            for managed in map(self._managed.__getitem__, met):
                managed.check_place("its new value was not there yet")
        with self._on_stream():
            self._engine.require(index)
        self._mark_changed(met)
        return met

    def look_up(self, index, ids):
        """For awaited.Awaited: brings the new values of the rows `ids` of a table. Returns them; None: it cannot."""
        managed = self._managed[index]
        if managed.is_late:
            with torch.no_grad(), self._on_stream():
                return tables.bring_rows(self._engine, index, managed, ids)
        units = [m.unit for m in self._managed]
        if tables.is_table(managed) and units.count(managed.unit) == 1 and managed.unit >= self._device_units:
            self._engine.set_late(index)  # from the next step on
            managed.is_late = True
        return None

    def _await_all(self):
        self._engine.has_gradients()  # refused in a forked process
        if self._awaited is not None:
            self._awaited.finish(self)

    def _read_changed(self):
        """Takes over values that somebody has written into the parameters, as load_state_dict() of a model does."""
        changed = [i for i, managed in enumerate(self._managed) if managed.was_written()]
        for index in changed:
            values = self._managed[index].values
            self._write(MASTER, index, parameters.master_of(values, sharding.local_of(self._read(MASTER, index))))
            self._managed[index].note_version()
        if changed:
            with self._on_stream():
                self._engine.upload()

    def _mark_changed(self, indices):
        """Tells autograd that values have changed: an old graph that needs them fails then, as with any optimizer."""
        for managed in map(self._managed.__getitem__, indices):
            torch.autograd.graph.increment_version(managed.values)
            managed.note_version()


class _NoEngine:
    """In the engine's place where nothing is trained."""

    def has_gradients(self):
        return False

    def upload(self):
        pass

    def set_max_grad_norm(self, value):
        pass

    def use_stream(self, handle):
        pass

    def counters(self):
        return {}


def _name_of(group, number, position):
    names = group.get("param_names") or []  # of named_parameters(); of others if somebody has edited the list
    return names[position] if len(names) == len(group["params"]) else f"parameter {position} of group {number}"


def _hook_of(reference):
    def take(parameter):
        optimizer = reference()
        if optimizer is None:
            return
        with torch.no_grad():
            optimizer._take_from_backward(optimizer._managed[optimizer._index[id(parameter)]])

    return take
