"""How the optimizer state is split between the host and the device, and whether there is memory for it."""
import torch

from superoffload import _engine, errors, sharding

# Of a GPU's memory, the part that is left when state takes what is free: for batches that are a little larger.
_SPARE_PART = 16
# Of the state, room for updates that may be discarded, the most that memory allows.
_SPARE_STATE = (0.25, 0.1, 0.02)


def device_units(managed, moment_bits, offload_ratio, device_memory):
    """How many units the device owns: the first ones, as many as the ratio or the bytes allow."""
    elements = {}
    for m in managed:
        elements[m.unit] = elements.get(m.unit, 0) + m.values.numel()
    if offload_ratio is not None:
        room = (1 - offload_ratio) * sum(elements.values())
    else:
        room = (device_memory or 0) / (4 + 2 * moment_bits / 8 + (1 / 32 if moment_bits == 8 else 0))
    unaligned = {m.unit for m in managed if m.address % 16 != 0}  # the device's AdamW reads 16 bytes at a time
    units = 0
    for unit, count in elements.items():  # in order
        if count > room or unit in unaligned:
            break
        room -= count
        units += 1
    return units


def check(tensors, settings):
    """Sets spare_state to what host memory allows. UserError if there is too little for any, with a table."""
    available, limit = _engine.available_host_memory()
    _, processes = sharding.place_on_host()
    if processes > 1:
        available, limit = available // processes, f"{limit}, a {processes}th of it for each process"
    for settings["spare_state"] in _SPARE_STATE:
        device, host, table = _engine.memory_of(tensors, settings)
        if host <= available:
            break
    else:
        advice = "state_dtype=torch.bfloat16 takes 4 bytes less a parameter, torch.uint8 6 bytes less"
        if device > 0:  # memory of its own
            advice += ", and device_memory or offload_ratio moves state to the GPU"
        raise errors.UserError(
            f"the optimizer takes {_gib(host)} of host memory, and there are {_gib(available)} ({limit}); "
            f"{advice}\n{table}"
        )
    if device > 0 and device > torch.cuda.mem_get_info()[0]:
        raise errors.UserError(
            f"the optimizer takes {_gib(device)} of the GPU's memory for gradients and state, and there are "
            f"{_gib(torch.cuda.mem_get_info()[0])}; less device_memory, or an offload_ratio nearer to 1, leaves more "
            f"state to the host\n{table}"
        )


def room_for_state(device):
    """Bytes of a GPU's memory that are free beside what PyTorch has reserved by now, but for a part to spare."""
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    return max(0, free - total // _SPARE_PART)


def holds_a_copy(managed):
    """Whether the host has memory for the state of these once more, in fp32."""
    available, _ = _engine.available_host_memory()
    _, processes = sharding.place_on_host()
    return 12 * sum(m.values.numel() for m in managed) <= available // processes


def _gib(count):
    return f"{count / 2**30:.1f} GiB"
