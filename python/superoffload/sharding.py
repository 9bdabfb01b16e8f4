"""Training with several processes: parameters that are spread over them, and a host that they share.

A DTensor, which FSDP2 (fully_shard) makes of a parameter, is whole nowhere: each process has a shard, and updates it.
The norm that is clipped to is that of the whole gradients, so the processes add up what they have, in the order of
their ranks; all of them come to the same verdict.
"""
import os
import sys

import torch
from torch import distributed

from superoffload import errors


def is_spread(tensor):
    tensors = sys.modules.get("torch.distributed.tensor")  # it is there if a DTensor is
    return tensors is not None and isinstance(tensor, tensors.DTensor)


def local_of(tensor):
    """What this process has of it, in the same memory."""
    if not is_spread(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def gradient_of(parameter, name):
    """The local part of a parameter's gradient."""
    gradient = parameter.grad
    if is_spread(parameter) and gradient.placements != parameter.placements:
        raise errors.UserError(
            f"the gradient of {name} is spread as {gradient.placements}, and the parameter as {parameter.placements}: "
            "redistribute it before step()"
        )
    return local_of(gradient)


def local_values(values, parameter):
    """The part of `values`, a state of the whole parameter's shape, that belongs to this process's shard."""
    if not is_spread(parameter):
        return values
    if is_spread(values):
        if values.placements != parameter.placements or values.device_mesh != parameter.device_mesh:
            values = values.redistribute(parameter.device_mesh, parameter.placements)
        return local_of(values)
    for dimension, placement in enumerate(parameter.placements):
        if placement.is_shard():
            size = -(-values.shape[placement.dim] // parameter.device_mesh.size(dimension))  # as torch.chunk has it
            first = min(parameter.device_mesh.get_local_rank(dimension) * size, values.shape[placement.dim])
            values = values.narrow(placement.dim, first, min(size, values.shape[placement.dim] - first))
    return values


def are_added_up_later():
    """Whether gradients of whole parameters stay in param.grad until step().

    With several processes somebody may still add them up there: DistributedDataParallel, or the script.
    """
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def place_on_host():
    """(part, parts): which of the equal parts of the host is this process's."""
    if not are_added_up_later():
        return 0, 1
    try:
        part, parts = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    except (KeyError, ValueError):  # not started by torchrun: all processes may be on this host
        part, parts = distributed.get_rank(), distributed.get_world_size()
    return (part, parts) if 0 <= part < parts else (0, 1)


def cpu_part():
    """The same for CPUs: all of those that this process was bound to, if it was bound to other ones than its parent."""
    try:
        bound = os.sched_getaffinity(0) != os.sched_getaffinity(os.getppid())
    except OSError:
        bound = False
    return (0, 1) if bound else place_on_host()


def peers_of(named):
    """The Peers of (name, parameter) pairs; None: each is whole. Refuses what is spread in a way that is not known."""
    spread = [(name, p) for name, p in named if is_spread(p)]
    if not spread:
        return None
    if len(spread) < len(named):
        whole = next(name for name, p in named if not is_spread(p))
        raise errors.UserError(
            f"{whole} is a whole tensor, and {spread[0][0]} a DTensor: make an optimizer for each kind"
        )
    name, first = spread[0]
    dimension = _shard_dimension(name, first)
    for other, p in spread:
        if p.device_mesh != first.device_mesh or _shard_dimension(other, p) != dimension:
            raise errors.UserError(
                f"{other} is spread as {p.placements} over {p.device_mesh}, and {name} as {first.placements} over "
                f"{first.device_mesh}: make an optimizer for the parameters of each mesh and way"
            )
    if dimension is None:
        return None
    mesh = first.device_mesh
    return Peers(mesh.get_group(dimension), mesh.device_type, [name for name, _ in spread])


def _shard_dimension(name, parameter):
    """The dimension of the mesh over which a DTensor is sharded; None: it is whole on each process."""
    shards = [i for i, placement in enumerate(parameter.placements) if placement.is_shard()]
    plain = all(type(p).__name__ in ("Shard", "Replicate") for p in parameter.placements)
    if len(shards) > 1 or not plain:
        raise errors.UserError(
            f"{name} is spread as {parameter.placements}: the optimizer is for fully_shard over one dimension of a "
            "mesh, replicated over others, and for no other parallelism beside it"
        )
    return shards[0] if shards else None


class Peers:
    """The processes over which an optimizer's parameters are spread. All of them make the same calls.

    group: theirs. names: of all parameters, also of those of which this process has nothing.
    """

    def __init__(self, group, device_type, names):
        self.group, self.names = group, names
        self._device = torch.device("cpu") if device_type == "cpu" else torch.device(device_type, _current(device_type))

    def _gather(self, values):
        own = torch.tensor(values, dtype=torch.float64, device=self._device)
        tables = [torch.empty_like(own) for _ in range(distributed.get_world_size(self.group))]
        distributed.all_gather(tables, own, group=self.group)
        return [table.tolist() for table in tables]

    def statistics(self, positions, own):
        """By name, (sum of squares, count of Inf and NaN) over all. own: this process's, of names at `positions`."""
        table = [[0.0, 0.0] for _ in self.names]
        for position, (squares, count) in zip(positions, own):
            table[position] = [squares, float(count)]
        total = [[0.0, 0.0] for _ in self.names]
        for theirs in self._gather(table):  # in the order of ranks
            total = [[a + c, b + d] for (a, b), (c, d) in zip(total, theirs)]
        return [(squares, int(count)) for squares, count in total]

    def all_of(self, flag):
        return all(theirs for (theirs,) in self._gather([float(flag)]))

    def agree(self, error):
        """Raises UserError on all processes if there is one on any, so that none waits for another."""
        failed = [rank for rank, (flag,) in enumerate(self._gather([float(error is not None)])) if flag]
        if error is not None:
            raise error
        if failed:
            raise errors.UserError(f"the optimizer cannot be made on rank {failed[0]} of its group, which says why")


def _current(device_type):
    return getattr(torch, device_type).current_device()
