"""The parameters of an optimizer as the engine takes them: what they must be, who has them, their units."""
import torch

from superoffload import errors, sharding

# Elements. A unit is what the host may begin with when all its gradients are there.
_SMALLEST_UNIT, _LARGEST_UNIT = 1 << 16, 1 << 25
# Elements that the host updates at a time: few buckets, since between two of them it takes a quarter of a millisecond
# while PyTorch launches kernels, and so many that the last ones are soon done.
_SMALLEST_BUCKET, _LARGEST_BUCKET = 1 << 20, 1 << 24
DTYPES = (torch.float32, torch.bfloat16)
# By id of a parameter, a weak reference to its optimizer. No attribute of the parameter: a model is to be pickled.
owners = {}


class Managed:
    """A parameter that the engine updates, or this process's shard of one.

    values: what the engine updates. position: among all parameters that are trained, also those without a shard here.
    """

    def __init__(self, parameter, group, name, position):
        self.parameter, self.group, self.name, self.position = parameter, group, name, position
        self.values = sharding.local_of(parameter)
        self.address, self.dtype = self.values.data_ptr(), self.values.dtype
        self.shape, self.stride = self.values.shape, self.values.stride()
        # Held, so that the engine, which has the address, never writes into memory that is another's by now.
        self.storage = self.values.untyped_storage()
        self.handle, self.unit = None, None
        self.is_late = False  # a table, whose update may come last, but for the rows that are looked up
        self.note_version()

    def _versions(self):
        # A DTensor's operations count on it or on its shard, as they were called.
        return self.parameter._version, self.values._version

    def note_version(self):
        self._noted = self._versions()

    def was_written(self):
        """Whether somebody has written values since note_version()."""
        return self._versions() != self._noted

    def has_moved(self):
        """Whether the values lie elsewhere than the engine knows, as after model.to() or with another param.data."""
        values = sharding.local_of(self.parameter)
        return values.data_ptr() != self.address or values.dtype != self.dtype or values.stride() != self.stride

    def check_place(self, reason):
        """For where a move cannot be followed."""
        if self.has_moved():
            raise errors.UserError(
                f"{self.name} lies in other memory than when the optimizer was made, and {reason}: make the optimizer "
                "after model.to(...), and write values in place (param.copy_) instead of replacing param.data"
            )

    def check_move(self):
        """That state of the parameter fits it where it is now."""
        if self.values.dtype != self.dtype or self.values.shape != self.shape:
            raise errors.UserError(
                f"{self.name} was {self.dtype} of shape {tuple(self.shape)} when its state was made, and is "
                f"{self.values.dtype} of shape {tuple(self.values.shape)}: make another optimizer for it"
            )

    def empty(self, dtype, device):
        """A tensor laid out as the values that the engine has, and spread over processes as the parameter."""
        if sharding.is_spread(self.parameter):
            return torch.empty_like(self.parameter, dtype=dtype, device=device, requires_grad=False)
        return torch.empty_strided(self.shape, self.stride, dtype=dtype, device=device)


class Absent:
    """A parameter of which this process has no element. Its updates are counted, so that all have the same state."""

    def __init__(self, parameter):
        self.parameter, self.updates, self.has_gradient = parameter, 0, False

    def collect(self):
        self.has_gradient = self.has_gradient or self.parameter.grad is not None
        self.parameter.grad = None

    def end_step(self, finite):
        self.updates += finite and self.has_gradient
        self.has_gradient = False


def check_parameters(managed, optimizer):
    spans = []
    for m in managed:
        p = m.values
        if p.device.type not in ("cpu", "cuda") or torch.version.hip:
            raise errors.UserError(f"{m.name} is on {p.device}: the optimizer is for the CPU and for NVIDIA GPUs")
        if p.device != managed[0].values.device:
            raise errors.UserError(
                f"{m.name} is on {p.device}, and {managed[0].name} on {managed[0].values.device}: make an optimizer "
                "for the parameters of each device"
            )
        if m.dtype not in DTYPES:
            raise errors.UserError(f"{m.name} is {m.dtype}: parameters are to be torch.float32 or torch.bfloat16")
        if not m.parameter.is_leaf:
            raise errors.UserError(f"{m.name} is computed from other tensors: give the tensors that are trained")
        if p.untyped_storage().nbytes() < p.numel() * p.element_size():
            raise errors.UserError(f"{m.name} has no memory: make the optimizer when its values are there")
        if not is_dense(p):
            raise errors.UserError(f"{m.name} has gaps or repeats in memory: make it contiguous before the optimizer")
        other = owner_of(m.parameter)
        if other is not None and other is not optimizer:
            raise errors.UserError(f"{m.name} has a superoffload.AdamW already: delete that one, or leave it out here")
        spans.append((m.address, m.address + p.numel() * p.element_size(), m.name))
    spans.sort()
    for (_, end, first), (begin, _, second) in zip(spans, spans[1:]):
        if begin < end:
            raise errors.UserError(f"{first} and {second} share memory: tie weights by one and the same Parameter")


def is_trained(parameter):
    return parameter.numel() > 0 and (parameter.requires_grad or parameter.grad is not None)


def can_be_followed(managed):
    """Whether the parameter may move. Where it is a shard, other processes would have to know of it."""
    return not sharding.is_spread(managed.parameter)


def owner_of(parameter):
    """The optimizer that manages the parameter; None: there is none."""
    optimizer = owners.get(id(parameter), lambda: None)()
    index = None if optimizer is None else optimizer._index.get(id(parameter))
    return optimizer if index is not None and optimizer._managed[index].parameter is parameter else None


def host_like(tensor):
    """An fp32 tensor in host memory, laid out, and spread over processes, as this one."""
    return torch.empty_like(tensor, dtype=torch.float32, device="cpu", requires_grad=False)


def is_dense(tensor):
    """Whether the elements fill their memory without gaps or repeats, in any order of dimensions."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def units(managed):
    """By parameter, its unit: runs of whole parameters, about 32 of them in a model that is not small."""
    total = sum(m.values.numel() for m in managed)
    target = min(max(total // 32, _SMALLEST_UNIT), _LARGEST_UNIT)
    units, unit, held = [], 0, 0
    for m in managed:
        if held > 0 and held + m.values.numel() > target:
            unit, held = unit + 1, 0
        units.append(unit)
        held += m.values.numel()
    return units


def bucket_elements(managed):
    """A power of two, for about 200 buckets in a model that is not small."""
    target = sum(m.values.numel() for m in managed) // 256
    return min(max(1 << target.bit_length(), _SMALLEST_BUCKET), _LARGEST_BUCKET)


def master_of(values, master):
    """`master` where it rounds to the parameter's value, else that value, which somebody has written since."""
    values = values.detach().cpu()
    master = master.cpu()
    if values.dtype == torch.float32:
        return values
    return torch.where(master.to(values.dtype) == values, master.to(torch.float32), values.to(torch.float32))
