"""Embedding tables, of which a forward pass reads few rows at first.

A table's gradient is the last to come, and its rows the first to be read. So the rows that a batch looks up get their
new values at once, and the update of all comes behind those of other parameters, under the forward pass.
"""
import ctypes

import torch

from superoffload import sharding

# Elements: below, all of it is soon updated.
_SMALLEST = 1 << 22
# Rows without a lookup whose gradients are looked at.
_SAMPLE = 256


def is_table(managed):
    values = managed.values
    return (
        values.dim() == 2
        and values.numel() >= _SMALLEST
        and values.is_contiguous()
        and not sharding.is_spread(managed.parameter)
    )


def bring_rows(engine, index, managed, ids):
    """Writes new values into the rows `ids` of a late table. Returns these rows, or None if that is not possible."""
    values = managed.values.detach()
    rows = torch.unique(ids.detach())
    on_host = rows.to("cpu", torch.int64)
    count, width = len(on_host), values.shape[1]
    if count == 0 or on_host[0] < 0 or on_host[-1] >= values.shape[0]:
        return None  # embedding() says what is wrong
    if 2 * count > values.shape[0]:
        return None  # hardly less than all
    gradients = _to_host(_view(engine, index, values).index_select(0, rows))
    dtype = torch.bfloat16 if engine.has_bf16_weights() else torch.float32
    new = torch.empty(count, width, dtype=dtype, pin_memory=values.is_cuda)
    if not engine.preview_rows(index, width, on_host.data_ptr(), count, gradients.data_ptr(), new.data_ptr()):
        return None
    values.index_copy_(0, rows.to(torch.int64), new.to(values.device, non_blocking=True).to(values.dtype))
    managed.note_version()
    return rows


def has_others(gradient, rows):
    """Whether the gradient has values in rows other than these: then somebody has read those."""
    if gradient.is_sparse:
        return False
    others = torch.ones(gradient.shape[0], dtype=torch.bool, device=gradient.device)
    others[rows] = False
    return bool(gradient[others.nonzero()[:_SAMPLE, 0]].any())


def _to_host(tensor):
    if not tensor.is_cuda:
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)


class _Memory:
    """Memory of a GPU, as PyTorch takes it."""

    def __init__(self, address, elements, typestr):
        self.__cuda_array_interface__ = {
            "data": (address, False), "shape": (elements,), "typestr": typestr, "strides": None, "version": 2
        }


def _view(engine, index, values):
    """The table's last gradient, in the engine's memory."""
    dtype = torch.bfloat16 if engine.has_bf16_gradients() else torch.float32
    address, count = engine.last_gradient(index), values.numel()
    if values.is_cuda:
        flat = torch.as_tensor(_Memory(address, count, "<i2" if dtype.itemsize == 2 else "<f4"), device=values.device)
    else:
        flat = torch.frombuffer((ctypes.c_byte * (count * dtype.itemsize)).from_address(address), dtype=dtype)
    return flat.view(dtype).view(values.shape)
