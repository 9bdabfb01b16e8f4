"""AdamW for any PyTorch model, whose optimizer state is kept and updated beside the model's own work.

Gradients leave as they are accumulated, and AdamW begins with them before the gradient norm is known; the step is what
it would be without that, to the bit. docs/pytorch.md explains it.
"""
import contextlib
import copy
import itertools
import warnings

import torch

from superoffload import _engine, clipping, errors, groups, parameters, trainer
from superoffload.engine_parameters import EngineParameters
from superoffload.state import check


class AdamW(EngineParameters, torch.optim.Optimizer):
    """A torch.optim.AdamW of fp32 or bf16 tensors that clips by itself and skips steps that are not finite.

    The parameters are on one device, the CPU or a GPU; the optimizer state is in host memory, and the CPU updates it.

    params: tensors or parameter groups, as for any optimizer; groups may have their own lr, betas, eps, weight_decay.
    lr, betas, eps, weight_decay: torch.optim.AdamW's if they are not given; where a transformers.Trainer makes the
    optimizer, those of its TrainingArguments.
    max_grad_norm: the norm of all gradients together is clipped to it, as by clip_grad_norm_; 0: no clipping.
    state_dtype: of the moments, torch.float32; torch.bfloat16, which needs a second beta of at most 0.996; or torch.uint8
    for 8-bit floating point numbers in blocks of 256. bf16 parameters have fp32 master weights beside them in any case.
    overlap: False has each update wait for the gradient norm; results are the same.
    under_forward: step() returns before all parameters have new values; each gets its own before it is read, so that
    updates go on under the next forward pass. None: on a GPU. False: step() waits for all.
    offload_ratio: the share of the optimizer state that is in host memory; the rest is in the parameters' device's, for
    those that come first. Or device_memory: bytes there that the state may take, or "auto": after the third step, what
    is free. Without these all of it is the host's.
    update_over_link: the GPU updates a part of the state in host memory too, which is then pinned, and travels over the
    link and back.
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
        lr=None,
        betas=None,
        eps=None,
        weight_decay=None,
        *,
        max_grad_norm=0.0,
        state_dtype=torch.float32,
        overlap=True,
        under_forward=None,
        offload_ratio=None,
        device_memory=None,
        update_over_link=False,
        threads=0,
    ):
        groups.check_settings(state_dtype, threads, offload_ratio, device_memory)
        groups.check_max_grad_norm(max_grad_norm)
        self.grad_norm = None
        self.skipped_steps = 0
        self._begin(
            {
                "moment_bits": groups.MOMENT_BITS[state_dtype],
                "synchronous": not overlap,
                "update_over_link": update_over_link,
                "threads": threads,
            },
            max_grad_norm=float(max_grad_norm),
            under_forward=under_forward,
            offload_ratio=offload_ratio,
            device_memory=device_memory,
        )
        given = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        trainer.complete(type(self), given)
        super().__init__(params, groups.defaults(**given))
        if weight_decay is not None and all(group["weight_decay"] != weight_decay for group in self.param_groups):
            warnings.warn(
                f"weight_decay={weight_decay} has no effect, since every parameter group has its own. A Trainer makes "
                "groups with TrainingArguments(weight_decay=...), which is 0 by default.",
                stacklevel=2,
            )
        self._build({})
        clipping.install(parameters.owner_of)

    def add_param_group(self, param_group):
        """Adds parameters; state and gradients of the others stay."""
        super().add_param_group(param_group)
        try:
            groups.check_group(self.param_groups[-1], self._settings["moment_bits"])
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
        statistics = self._statistics()
        with self._on_stream():
            finite, norm, _, bad = self._engine.step(groups.updates_of(self.param_groups), statistics)
        for absent in self._absent.values():
            absent.end_step(finite)
        self._limit = self._max_grad_norm
        self.grad_norm = norm
        if not (finite and self._awaited is not None and self._awaited.begin()):
            with self._on_stream():
                self._engine.wait()
            self._mark_changed(range(len(self._managed)))
        if not finite:
            self.skipped_steps += 1
            name = self._peers.names[bad] if self._peers is not None else self._managed[bad].name
            warnings.warn(f"step skipped: a gradient of {name} is Inf or NaN", stacklevel=3)
        self._state.renew()
        self._split_state()
        return loss

    @property
    def max_grad_norm(self):
        """The norm of all gradients together is clipped to it; 0: no clipping. A new value is the next step()'s."""
        return self._max_grad_norm

    @max_grad_norm.setter
    def max_grad_norm(self, value):
        groups.check_max_grad_norm(value)
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
        norm = self._norm()
        if error_if_nonfinite and norm != norm:
            raise RuntimeError("the norm of the gradients is not finite, so they cannot be clipped")
        self._limit = min(limits, default=0.0)
        return torch.tensor(norm, device=self._device)

    def _norm(self):
        if self._peers is not None:
            return _engine.norm_of(self._statistics())
        with self._on_stream():
            return self._engine.gradient_norm(groups.updates_of(self.param_groups))

    def _check_clipped(self, parameters):
        given = {id(p) for p in parameters}
        for index, managed in enumerate(self._managed):
            if id(managed.parameter) not in given and self._engine.has_gradient(index):
                raise errors.UserError(
                    f"clip_grad_norm_ without {managed.name}: superoffload.AdamW clips the norm of all its gradients; "
                    "make an optimizer for those that are clipped together"
                )
        for p in parameters:
            if p.grad is not None and not self.knows(p):
                raise errors.UserError(
                    "clip_grad_norm_ of parameters of a superoffload.AdamW and of others: call it for each by itself"
                )

    def zero_grad(self, set_to_none=True):
        """Forgets the gradients since the last step."""
        self._limit = self._max_grad_norm
        super().zero_grad(set_to_none=True)
        for absent in self._absent.values():
            absent.has_gradient = False
        if self._engine is not None and self._engine.has_gradients():
            with self._on_stream():
                self._engine.drop_gradients()

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

    @property
    def state(self):
        """A dict of the parameters' states. Who holds one over a step has that step wait for the new one."""
        return self._state

    @state.setter
    def state(self, value):
        if value is not self._state and self._engine is not None:  # torch's constructor sets it, too
            value = dict(value)
            self._state.clear()
            self._state.update(value)

    def state_dict(self):
        """As of torch.optim.AdamW: "step", "exp_avg", "exp_avg_sq" by parameter, in fp32; for bf16 also "master".

        The tensors are copies in host memory.
        """
        def begin(_):
            self._sync()
            if self._state.orphans():
                raise errors.UserError(
                    "optimizer.state has the state of a parameter that is in no group: put it back into one, or take "
                    "its state away (del optimizer.state[parameter])"
                )
            self._state.give_copies(True)

        def end(_, __):
            self._state.give_copies(False)

        with contextlib.ExitStack() as hooks:
            hooks.callback(self.register_state_dict_pre_hook(begin).remove)  # the last of them
            hooks.callback(self.register_state_dict_post_hook(end, prepend=True).remove)
            try:
                return super().state_dict()
            finally:
                self._state.give_copies(False)

    def load_state_dict(self, state_dict):
        """Takes a state of this optimizer's or of torch.optim.AdamW's. Load the model's weights before."""
        def begin(_, loaded):
            self._loaded = loaded
            return {**loaded, "state": {}}  # torch would round states to the parameters' dtype

        hook = self.register_load_state_dict_pre_hook(begin)  # the last of them
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
            self._loaded = None

    def __setstate__(self, state):
        """Where load_state_dict() has looked at everything, before its hooks for afterwards."""
        for group in state["param_groups"]:
            groups.complete(group, self.defaults)
            groups.check_group(group, self._settings["moment_bits"])
        keys = itertools.chain.from_iterable(group["params"] for group in self._loaded["param_groups"])
        by_key = dict(zip(keys, self.all_parameters()))
        states = [(by_key.get(key, key), value) for key, value in self._loaded["state"].items()]
        for key, value in states:
            if isinstance(key, torch.Tensor):
                check(self._name(key), key, value)
        self.param_groups = state["param_groups"]
        if not states and self._is_new():
            return  # as trainers do that move an optimizer's state to its device
        self._state.clear()
        self._sync()
        self._state.forget()
        for key, value in states:
            if isinstance(key, torch.Tensor) and self.knows(key) and float(value.get("step", 0)) > 0:
                self._state.put(key, value)
            else:
                self._state[key] = copy.deepcopy(value)
        with self._on_stream():
            self._engine.upload()
