"""AdamW for any PyTorch model, whose optimizer state is kept and updated beside the model's own work.

Gradients leave as they are accumulated, and AdamW begins with them before the gradient norm is known; the step is what
it would be without that, to the bit. docs/pytorch.md explains it.
"""
import contextlib
import itertools
import warnings
import weakref

import torch

from superoffload import _engine, awaited, clipping, errors, memory, parameters

_MASTER, _EXP_AVG, _EXP_AVG_SQ = range(3)
# As the program has it for --optimizer_state_dtype bf16 (optim/adamw.h says why).
_LARGEST_BETA2_OF_BF16 = 0.996
# Options of torch.optim.AdamW that change results, and the only value that is implemented.
_ONLY = {"amsgrad": False, "maximize": False, "differentiable": False}


class AdamW(torch.optim.Optimizer):
    """A torch.optim.AdamW of fp32 or bf16 tensors that clips by itself and skips steps that are not finite.

    The parameters are on one device, the CPU or a GPU; the optimizer state is in host memory, and the CPU updates it.

    params: tensors or parameter groups, as for any optimizer; groups may have their own lr, betas, eps, weight_decay.
    max_grad_norm: the norm of all gradients together is clipped to it, as by clip_grad_norm_; 0: no clipping.
    state_dtype: of the moments, torch.float32 or torch.bfloat16, which needs a second beta of at most 0.996. bf16
    parameters have fp32 master weights beside them in any case.
    overlap: False has each update wait for the gradient norm; results are the same.
    under_forward: step() returns before all parameters have new values; each gets its own before it is read, so that
    updates go on under the next forward pass. None: on a GPU. False: step() waits for all.
    offload_ratio: the share of the optimizer state that is in host memory; the rest is in the parameters' device's, for
    those that come first. Or device_memory: bytes there that the state may take. At first all of it is the host's.
    threads: that run AdamW; 0: one for each core, or on a GPU's host all cores but three.

    A parameter's gradient is taken when it is accumulated, so param.grad is None after backward(). Gradients of several
    backward passes add up until step(). A parameter without a gradient stays as it is, with its state, as in torch.

    After step(): grad_norm is the norm before clipping (NaN if the step was skipped), skipped_steps counts steps whose
    gradients had Inf or NaN and that changed nothing.

    Raises superoffload.UserError where it is used in a way that cannot work; the text says what to change.
    """

    # GradScaler then calls step() with its scale in the attribute grad_scale, where it is refused with a reason.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=1e-2,
        *,
        max_grad_norm=0.0,
        state_dtype=torch.float32,
        overlap=True,
        under_forward=None,
        offload_ratio=None,
        device_memory=None,
        threads=0,
    ):
        if state_dtype not in parameters.DTYPES:
            raise errors.UserError(f"state_dtype is {state_dtype}: give torch.float32 or torch.bfloat16")
        _check_max_grad_norm(max_grad_norm)
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 0:
            raise errors.UserError(f"threads is {threads!r}: give a whole number from 0 on")
        if offload_ratio is not None and device_memory is not None:
            raise errors.UserError("offload_ratio and device_memory are two ways to say the same: give one of them")
        if offload_ratio is not None and not 0 <= offload_ratio <= 1:
            raise errors.UserError(f"offload_ratio is {offload_ratio}: give a number from 0 to 1; 1 is all on the host")
        if device_memory is not None and not (isinstance(device_memory, int) and device_memory >= 0):
            raise errors.UserError(f"device_memory is {device_memory!r}: give a number of bytes, such as 8 << 30")
        self._offload_ratio, self._device_memory = offload_ratio, device_memory
        self._max_grad_norm = float(max_grad_norm)
        self._limit = self._max_grad_norm  # of the step under way
        self.grad_norm = None
        self.skipped_steps = 0
        self._settings = {
            "bf16_moments": state_dtype == torch.bfloat16,
            "synchronous": not overlap,
            "threads": threads,
        }
        self._under_forward = under_forward
        self._awaited = None  # awaited.Awaited, if step() need not wait for all new values
        self._device = torch.device("cpu")
        self._engine = None
        self._managed, self._index = [], {}  # of parameters.Managed, in the engine's order; and by id of the parameter
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay} | _ONLY
        super().__init__(params, defaults)
        self._build({})
        clipping.install(parameters.owner_of)

    def add_param_group(self, param_group):
        """Adds parameters; state and gradients of the others stay."""
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[-1])
            if self._engine is not None:
                self._rebuild()
        except errors.UserError:
            del self.param_groups[-1]
            raise

    @torch.no_grad()
    def step(self, closure=None):
        """Ends the step: clips and updates the parameters, or skips it. Returns the closure's loss, if there is one."""
        scaled = getattr(self, "grad_scale", None) is not None
        self.grad_scale = self.found_inf = None  # the scaler's; it does not take them back if step() raises
        if scaled:
            raise errors.UserError(
                "a GradScaler scales the loss, and this optimizer takes gradients as they come: use bf16, "
                "or GradScaler(enabled=False)"
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._collect()
        if not self._engine.has_gradients():
            raise errors.UserError("step() without a gradient since the last one: call backward() first")
        self._engine.set_max_grad_norm(self._limit)
        with self._on_stream():
            finite, norm, _, bad = self._engine.step(self._groups())
        self._limit = self._max_grad_norm
        self.grad_norm = norm
        if not (finite and self._awaited is not None and self._awaited.begin()):
            with self._on_stream():
                self._engine.wait()
            self._mark_changed(range(len(self._managed)))
        if not finite:
            self.skipped_steps += 1
            warnings.warn(f"step skipped: a gradient of {self._managed[bad].name} is Inf or NaN", stacklevel=3)
        return loss

    @property
    def max_grad_norm(self):
        """The norm of all gradients together is clipped to it; 0: no clipping. A new value is the next step()'s."""
        return self._max_grad_norm

    @max_grad_norm.setter
    def max_grad_norm(self, value):
        _check_max_grad_norm(value)
        self._max_grad_norm = self._limit = float(value)

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm, *, parameters=None, error_if_nonfinite=False):
        """Clips the next step() to max_norm, or to max_grad_norm if that is less. Returns the norm of all gradients.

        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm) comes here. It waits for the gradients that there
        are; more may follow before step(). parameters: what the caller means to clip, which is to be all that this
        optimizer has gradients of.
        """
        if not max_norm > 0:
            raise errors.UserError(f"clip_grad_norm_ to {max_norm}: give a number above 0")
        if parameters is not None:
            self._check_clipped(parameters)
        self._collect()
        if not self._engine.has_gradients():
            return torch.tensor(0.0, device=self._device)
        limits = [float(limit) for limit in (max_norm, self._max_grad_norm) if 0 < limit < float("inf")]
        with self._on_stream():
            norm = self._engine.gradient_norm(self._groups())
        if error_if_nonfinite and norm != norm:
            raise RuntimeError("the norm of the gradients is not finite, so they cannot be clipped")
        self._limit = min(limits, default=0.0)
        return torch.tensor(norm, device=self._device)

    def _check_clipped(self, parameters):
        given = {id(p) for p in parameters}
        for index, managed in enumerate(self._managed):
            if id(managed.parameter) not in given and self._engine.has_gradient(index):
                raise errors.UserError(
                    f"clip_grad_norm_ without {managed.name}: superoffload.AdamW clips the norm of all its gradients; "
                    "make an optimizer for those that are clipped together"
                )
        for p in parameters:
            if p.grad is not None and id(p) not in self._index:
                raise errors.UserError(
                    "clip_grad_norm_ of parameters of a superoffload.AdamW and of others: call it for each by itself"
                )

    def zero_grad(self, set_to_none=True):
        """Forgets the gradients since the last step."""
        self._limit = self._max_grad_norm
        super().zero_grad(set_to_none=True)
        if self._engine is not None and self._engine.has_gradients():
            with self._on_stream():
                self._engine.drop_gradients()

    def require(self, index):
        """For awaited.Awaited: the new value of a parameter, by its index, and of others, whose indices it returns."""
        with self._on_stream():
            self._engine.require(index)
        unit = self._managed[index].unit
        met = [i for i, managed in enumerate(self._managed) if managed.unit == unit]
        self._mark_changed(met)
        return met

    def __del__(self):
        if getattr(self, "_awaited", None) is not None:
            self._awaited.finish(self)  # the parameters may live on

    def __getstate__(self):
        raise errors.UserError(
            "this optimizer cannot be copied or pickled: make another one, and load state_dict() into it"
        )

    def counters(self):
        """How steps went: a dict of totals, for logs and tests."""
        return self._engine.counters()

    # ---- State, as torch.optim.AdamW has it ----

    def state_dict(self):
        """As of torch.optim.AdamW: "step", "exp_avg", "exp_avg_sq" by parameter, in fp32; for bf16 also "master".

        The tensors are in host memory.
        """
        self._await_all()
        self._read_changed()
        try:
            for index, managed in enumerate(self._managed):
                if self._engine.updates(index) > 0:
                    self.state[managed.parameter] = self._read_state(index)
            return super().state_dict()
        finally:
            self.state.clear()

    def load_state_dict(self, state_dict):
        """Takes a state of this optimizer's or of torch.optim.AdamW's. Load the model's weights before."""
        self._await_all()
        saved = list(itertools.chain.from_iterable(group["params"] for group in state_dict["param_groups"]))
        previous = [dict(group) for group in self.param_groups]
        super().load_state_dict({**state_dict, "state": {}})
        self.state.clear()
        try:
            for group in self.param_groups:
                self._check_group(group)
        except errors.UserError:
            for group, before in zip(self.param_groups, previous):
                group.clear()
                group.update(before)
            raise
        by_parameter = dict(zip(saved, self._parameters()))
        states = {id(by_parameter[key]): value for key, value in state_dict["state"].items() if key in by_parameter}
        if not states and self._is_new():
            return  # as trainers do that move an optimizer's state to its device
        self._build(states)

    # ---- Inside ----

    def _parameters(self):
        return itertools.chain.from_iterable(group["params"] for group in self.param_groups)

    @contextlib.contextmanager
    def _on_stream(self):
        """What the engine enqueues comes in the order of the GPU stream that is PyTorch's current one."""
        if self._device.type == "cpu":
            yield
            return
        with torch.cuda.device(self._device):  # the engine makes it the thread's, too
            self._engine.use_stream(torch.cuda.current_stream().cuda_stream)
            yield

    def _collect(self):
        """All gradients since the last step are the engine's, and all parameters that have one."""
        self._await_all()
        if any(p.requires_grad and id(p) not in self._index and p.numel() for p in self._parameters()):
            self._rebuild()  # unfrozen since
        self._read_changed()
        for managed in self._managed:
            if managed.parameter.grad is not None:  # assigned by hand, or from before the optimizer
                self._take(managed)

    def _await_all(self):
        if self._awaited is not None:
            self._awaited.finish(self)

    def _is_new(self):
        return not self._engine.has_gradients() and all(
            self._engine.updates(index) == 0 for index in range(len(self._managed))
        )

    def _groups(self):
        return [
            (float(g["lr"]), float(g["betas"][0]), float(g["betas"][1]), float(g["eps"]), float(g["weight_decay"]))
            for g in self.param_groups
        ]

    def _check_group(self, group):
        for name, value in _ONLY.items():
            if group.get(name, value) != value:
                raise errors.UserError(
                    f"{name}={group[name]} is not implemented: leave it out, or use torch.optim.AdamW"
                )
        lr, betas, eps, decay = float(group["lr"]), group["betas"], group["eps"], group["weight_decay"]
        if not (0 <= lr < float("inf") and 0 <= decay < float("inf")):
            raise errors.UserError(f"lr is {lr} and weight_decay {decay}: both are to be from 0 on")
        if not (all(0 <= beta < 1 for beta in betas) and 0 < eps < float("inf")):
            raise errors.UserError(f"betas are {betas} and eps {eps}: give betas from 0 to below 1, and an eps above 0")
        if self._settings["bf16_moments"] and betas[1] > _LARGEST_BETA2_OF_BF16:
            raise errors.UserError(
                f"betas are {betas}: in bf16, second moments whose beta is above {_LARGEST_BETA2_OF_BF16} lose their "
                "decay to rounding; give a beta of 0.99, or state_dtype=torch.float32"
            )

    def _build(self, states):
        """Makes the engine for the parameters as they are; `states`: by id of the parameter, as in a state_dict."""
        managed = []
        for number, group in enumerate(self.param_groups):
            for position, parameter in enumerate(group["params"]):
                if parameter.requires_grad and parameter.numel() > 0:
                    names = group.get("param_names")  # of named_parameters()
                    name = names[position] if names else f"parameter {position} of group {number}"
                    managed.append(parameters.Managed(parameter, number, name))
        parameters.check_parameters(managed, self)
        self._release()
        self._engine = _NoEngine()  # before there is another one, since memory may not do for two
        self._managed = managed
        self._index = {id(m.parameter): index for index, m in enumerate(managed)}
        if managed:
            self._device = managed[0].parameter.device
            for m, unit in zip(managed, parameters.units(managed)):
                m.unit = unit
            self._make_engine()
        reference = weakref.ref(self)
        for index, m in enumerate(managed):
            if id(m.parameter) in states:
                self._write_state(index, states[id(m.parameter)])
            parameters.owners[id(m.parameter)] = reference
            m.handle = m.parameter.register_post_accumulate_grad_hook(_hook_of(reference))
        if states:
            with self._on_stream():
                self._engine.upload()
        self._mark_changed(range(len(managed)))

    def _make_engine(self):
        on_gpu = self._device.type == "cuda"
        under_forward = on_gpu if self._under_forward is None else self._under_forward
        self._awaited = awaited.Awaited([m.parameter for m in self._managed], self) if under_forward else None
        tensors = [
            (m.name, m.address, m.dtype == torch.bfloat16, m.parameter.numel(), m.unit, m.group) for m in self._managed
        ]
        settings = self._settings | {
            "gpu": self._device.index if on_gpu else -1,
            "device_units": memory.device_units(
                self._managed, self._settings["bf16_moments"], self._offload_ratio, self._device_memory
            ),
            "awaits_updates": not under_forward,
            "max_grad_norm": self._max_grad_norm,
            "bucket_elements": parameters.bucket_elements(self._managed),
        }
        with torch.cuda.device(self._device) if on_gpu else contextlib.nullcontext():
            if on_gpu:
                torch.cuda.synchronize()  # what writes the parameters
                torch.cuda.empty_cache()  # the engine's memory on the GPU is not PyTorch's
            memory.check(tensors, settings, on_gpu)
            self._engine = _engine.TensorOptimizer(tensors, settings)

    def _rebuild(self):
        """Makes the engine anew for other parameters; state stays, and gradients of the step go back to param.grad."""
        self._await_all()
        self._read_changed()
        states, gradients = {}, []
        for index, managed in enumerate(self._managed):
            states[id(managed.parameter)] = self._read_state(index)
            if self._engine.has_gradient(index):
                gradients.append((managed.parameter, self._read_gradient(index)))
        self._build(states)
        for parameter, gradient in gradients:
            parameter.grad = gradient.to(parameter.dtype)

    def _read_gradient(self, index):
        dtype = torch.bfloat16 if self._engine.has_bf16_gradients() else torch.float32
        gradient = torch.empty_like(self._managed[index].parameter, dtype=dtype, requires_grad=False)
        with self._on_stream():
            self._engine.read_gradient(index, gradient.data_ptr())
        return gradient

    def _release(self):
        for managed in self._managed:
            managed.handle.remove()
            parameters.owners.pop(id(managed.parameter), None)
        self._managed = []

    def _take_from_backward(self, managed):
        if self._awaited is not None and self._awaited.awaits(managed.parameter):
            raise errors.UserError(
                f"{managed.name} was read before its new value was there, in a way that cannot be seen (a CUDA graph, "
                "a kernel of another library): make the optimizer with under_forward=False"
            )
        if managed.parameter.is_cuda and torch.cuda.is_current_stream_capturing():
            raise errors.UserError("a CUDA graph captures backward(), whose gradients this optimizer takes: capture "
                                   "the forward pass alone")
        self._take(managed)

    def _take(self, managed):
        """Takes the gradient out of param.grad, whose memory may be used anew in the current stream's order."""
        parameter, gradient = managed.parameter, managed.parameter.grad
        managed.check()
        if gradient.is_sparse:
            raise errors.UserError(f"{managed.name} has a sparse gradient: make its module with sparse=False")
        if gradient.dtype != managed.dtype or gradient.stride() != parameter.stride():
            gradient = torch.empty_like(parameter).copy_(gradient)
        if parameter._version != managed.version:
            self._read_changed()
        parameter.grad = None
        index = self._index[id(parameter)]
        with self._on_stream():
            if gradient.is_cuda:  # it may have been computed on another stream
                gradient.record_stream(torch.cuda.current_stream())
            if self._engine.add_gradient(index, gradient.data_ptr(), managed.dtype == torch.bfloat16):
                self._engine.forecast(self._groups())

    def _read_changed(self):
        """Takes over values that somebody has written into the parameters, as load_state_dict() of a model does."""
        changed = [i for i, managed in enumerate(self._managed) if managed.parameter._version != managed.version]
        for index in changed:
            parameter = self._managed[index].parameter
            self._write(_MASTER, index, parameters.master_of(parameter, self._read(_MASTER, index)))
            self._managed[index].version = parameter._version
        if changed:
            with self._on_stream():
                self._engine.upload()

    def _mark_changed(self, indices):
        """Tells autograd that values have changed: an old graph that needs them fails then, as with any optimizer."""
        for managed in map(self._managed.__getitem__, indices):
            torch.autograd.graph.increment_version(managed.parameter)
            managed.version = managed.parameter._version

    def _read(self, array, index):
        values = parameters.host_like(self._managed[index].parameter)
        with self._on_stream():
            self._engine.read(array, index, values.data_ptr())
        return values

    def _read_state(self, index):
        """The state of a parameter, as in a state_dict."""
        state = {
            "step": torch.tensor(float(self._engine.updates(index))),
            "exp_avg": self._read(_EXP_AVG, index),
            "exp_avg_sq": self._read(_EXP_AVG_SQ, index),
        }
        if self._managed[index].dtype == torch.bfloat16:
            state["master"] = self._read(_MASTER, index)
        return state

    def _write(self, array, index, values):
        parameter = self._managed[index].parameter
        if values.shape != parameter.shape:
            raise errors.UserError(
                f"the state of {self._managed[index].name} has shape {tuple(values.shape)}, and the parameter "
                f"{tuple(parameter.shape)}: it is another model's"
            )
        held = parameters.host_like(parameter).copy_(values.detach())
        with self._on_stream():
            self._engine.write(array, index, held.data_ptr())

    def _write_state(self, index, state):
        name = self._managed[index].name
        for key in ("step", "exp_avg", "exp_avg_sq"):
            if key not in state:
                raise errors.UserError(f"the state of {name} has no {key!r}: it is no state of an AdamW")
        self._write(_EXP_AVG, index, state["exp_avg"])
        self._write(_EXP_AVG_SQ, index, state["exp_avg_sq"])
        if "master" in state:
            self._write(_MASTER, index, parameters.master_of(self._managed[index].parameter, state["master"]))
        self._engine.set_updates(index, int(state["step"]))


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


def _hook_of(reference):
    def take(parameter):
        optimizer = reference()
        if optimizer is None:
            return
        with torch.no_grad():
            optimizer._take_from_backward(optimizer._managed[optimizer._index[id(parameter)]])

    return take


def _check_max_grad_norm(value):
    if not 0 <= value < float("inf"):
        raise errors.UserError(f"max_grad_norm is {value}: give a number from 0 on; 0 clips nothing")
