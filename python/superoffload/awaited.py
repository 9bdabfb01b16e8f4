"""Who reads a parameter after step() waits until its new value is there, so that step() need not wait for all of them.

Between a step and the first use of the last parameter, a torch function mode looks at what is passed to PyTorch's
functions, and a hook at the modules that are called. Both are gone as soon as nothing is awaited.
"""
import sys
import threading
import weakref

import torch
from torch.overrides import TorchFunctionMode

_Tensor = torch.Tensor


def _getters(*names):
    return {getattr(_Tensor, name).__get__ for name in names if hasattr(_Tensor, name)}


# What tells nothing of a tensor's values, and is asked for between steps (zero_grad(), counts of parameters).
_HARMLESS = (
    _getters("shape", "dtype", "device", "layout", "ndim", "is_leaf", "grad_fn", "_version", "is_cuda")
    | _getters("requires_grad", "grad", "_backward_hooks", "retains_grad", "is_sparse", "is_quantized", "is_meta")
    | {_Tensor.grad.__set__, _Tensor.grad.__delete__, _Tensor.requires_grad.__set__, _Tensor.requires_grad_}
    | {_Tensor.size, _Tensor.dim, _Tensor.numel, _Tensor.nelement, _Tensor.element_size, _Tensor.get_device}
    | {_Tensor.is_floating_point, _Tensor.is_complex, _Tensor.register_hook, _Tensor.__hash__, _Tensor.__len__}
    | {_Tensor.register_post_accumulate_grad_hook}
)
# Modules whose forward pass reads parameters out of sight of both.
_OPAQUE = (torch.jit.ScriptModule, torch.nn.DataParallel)


_active = []  # of Awaited, those that await something
_of_thread = threading.local()  # mode: this thread's _Mode


class Awaited:
    """From begin() on, a parameter's new value is required before it is read.

    managed: of parameters.Managed, in the order of their indices. owner: has require(index), which makes the value of
    this parameter current, and of others, and returns their indices; and look_up(index, ids), which does it for some
    rows alone and returns these, or None if it cannot. Before it goes, it calls finish().
    """

    def __init__(self, managed, owner):
        self._managed, self._owner = managed, weakref.ref(owner)
        self._by_id, self._by_address, self._hook = {}, {}, None
        self._rows = {}  # by index, of those still awaited, the rows that are there

    def begin(self):
        """False: reads cannot be seen, so all values are to be required at once."""
        if _is_compiling() or not _enter():
            return False
        self._rows.clear()
        for index, managed in enumerate(self._managed):
            self._by_id[id(managed.parameter)] = index
            self._by_address.setdefault(managed.values.untyped_storage().data_ptr(), []).append(index)
        self._hook = torch.nn.modules.module.register_module_forward_pre_hook(self._before_forward)
        _active.append(self)
        return True

    def finish(self, owner):
        """Requires all that is still awaited."""
        for index in list(self._by_id.values()):
            self._meet(index, owner)
        _leave()

    def awaits(self, parameter):
        return id(parameter) in self._by_id

    def rows_of(self, parameter):
        """The rows that are there of a parameter that is still awaited; None: it has not been looked up."""
        return self._rows.get(self._by_id.get(id(parameter)))

    def meet(self, parameter):
        self._meet(self._by_id[id(parameter)])

    def look_up(self, ids, weight):
        """embedding(ids, weight) reads some rows alone."""
        index = self._by_id.get(id(weight))
        if index is None:
            self.look_at((weight,))
            return
        rows = None if index in self._rows else self._owner().look_up(index, ids)
        if rows is None:
            self._meet(index)
        else:
            self._rows[index] = rows

    def _meet(self, index, owner=None):
        if id(self._managed[index].parameter) not in self._by_id:
            return
        for met in (owner or self._owner()).require(index):
            self._by_id.pop(id(self._managed[met].parameter), None)
        if not self._by_id:
            self._by_address.clear()
            self._hook.remove()
            _active.remove(self)

    def look_at(self, values):
        """These may be read."""
        for value in values:
            if isinstance(value, _Tensor):
                if id(value) in self._by_id:
                    self._meet(self._by_id[id(value)])
                elif value.grad_fn is None and type(value) in (_Tensor, torch.nn.Parameter):
                    self._look_at_alias(value)
            elif isinstance(value, (list, tuple)):
                self.look_at(value)
            elif isinstance(value, dict):
                self.look_at(value.values())

    def _look_at_alias(self, value):
        """A tensor that shares a parameter's memory, such as one that its .data gave before the step."""
        try:
            address = value.untyped_storage().data_ptr()
        except (NotImplementedError, RuntimeError):  # no memory: of a meta tensor, or a wrapper of others
            return
        for index in self._by_address.get(address, ()):
            self._meet(index)

    def _before_forward(self, module, args):
        if isinstance(module, _OPAQUE):
            for index in list(self._by_id.values()):
                self._meet(index)
        if isinstance(module, torch.nn.Embedding) and type(module).forward is torch.nn.Embedding.forward:
            return  # it calls embedding(), which the mode sees
        for parameter in module._parameters.values():
            if parameter is not None and id(parameter) in self._by_id:
                self._meet(self._by_id[id(parameter)])


class _Mode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if _active and func is torch.nn.functional.embedding and len(args) == 2 and not (kwargs or {}).get("max_norm"):
            for awaited in tuple(_active):
                awaited.look_up(*args[:2])
        elif _active and func not in _HARMLESS:
            for awaited in tuple(_active):
                awaited.look_at(args)
                if kwargs:
                    awaited.look_at(kwargs.values())
        return func(*args, **(kwargs or {}))


def _stack():
    depth = torch._C._len_torch_function_stack()
    return depth, torch._C._get_function_stack_at(0) if depth else None


def _enter():
    """Puts the mode at the bottom of this thread's stack; False: there are others, which would have to end first."""
    depth, lowest = _stack()
    if depth > 1 or (depth == 1 and not isinstance(lowest, _Mode)):
        return False
    if depth == 0:
        _of_thread.mode = _Mode()
        _of_thread.mode.__enter__()
    return True


def _leave():
    """Takes the mode away if it is of no more use, and no other lies on it."""
    depth, lowest = _stack()
    if not _active and depth == 1 and lowest is getattr(_of_thread, "mode", None):
        _of_thread.mode.__exit__(None, None, None)
        _of_thread.mode = None


def _is_compiling():
    """Whether there are compiled functions, in which nothing is seen."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is None:
        return False
    backends = getattr(dynamo, "cached_backends", None)
    return backends is None or any(map(callable, backends.values()))
