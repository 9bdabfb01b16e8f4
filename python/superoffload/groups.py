"""The settings of an optimizer and of its parameter groups: what they may be."""

import torch

from superoffload import errors

# As the program has it for --optimizer_state_dtype bf16 (optim/adamw.h says why).
_LARGEST_BETA2_OF_BF16 = 0.996
# Options of torch.optim.AdamW that change results, and the only value that is implemented.
_ONLY = {"amsgrad": False, "maximize": False, "differentiable": False, "decoupled_weight_decay": True}


def defaults(**settings):
    """Those of a group, with all the keys of torch.optim.AdamW's, so that tools for its states take these."""
    given = {name: value for name, value in settings.items() if value is not None}
    if "betas" in given:
        given["betas"] = tuple(given["betas"])
    return torch.optim.AdamW([torch.zeros(1)]).defaults | given


def check_max_grad_norm(value):
    if not 0 <= value < float("inf"):
        raise errors.UserError(f"max_grad_norm is {value}: give a number from 0 on; 0 clips nothing")


# Of the moments, by state_dtype.
MOMENT_BITS = {torch.float32: 32, torch.bfloat16: 16, torch.uint8: 8}


def check_settings(state_dtype, threads, offload_ratio, device_memory):
    if state_dtype not in MOMENT_BITS:
        raise errors.UserError(f"state_dtype is {state_dtype}: give torch.float32, torch.bfloat16 or torch.uint8")
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 0:
        raise errors.UserError(f"threads is {threads!r}: give a whole number from 0 on")
    if offload_ratio is not None and device_memory is not None:
        raise errors.UserError("offload_ratio and device_memory are two ways to say the same: give one of them")
    if offload_ratio is not None and not 0 <= offload_ratio <= 1:
        raise errors.UserError(f"offload_ratio is {offload_ratio}: give a number from 0 to 1; 1 is all on the host")
    known = device_memory in (None, "auto") or (isinstance(device_memory, int) and device_memory >= 0)
    if not known:
        raise errors.UserError(
            f'device_memory is {device_memory!r}: give a number of bytes, such as 8 << 30, or "auto"'
        )


def check_lists(groups):
    """That parameters can be counted on to be the same when they are asked for again."""
    for number, group in enumerate(groups):
        params = group["params"]
        if not isinstance(params, (list, tuple)) or not all(isinstance(p, torch.Tensor) for p in params):
            raise errors.UserError(f'"params" of group {number} are no list of tensors: give one')


def complete(group, defaults):
    """Settings that older versions of torch's AdamW have not saved."""
    for name in ("lr", "betas", "eps", "weight_decay"):
        if name not in group:
            raise errors.UserError(f"a parameter group has no {name!r}: it is none of an AdamW")
    for name in defaults:
        group.setdefault(name, defaults[name])


def check_group(group, moment_bits):
    for name, value in _ONLY.items():
        if group.get(name, value) != value:
            raise errors.UserError(f"{name}={group[name]} is not implemented: leave it out, or use torch.optim.AdamW")
    lr, betas, eps, decay = float(group["lr"]), group["betas"], group["eps"], group["weight_decay"]
    if not (0 <= lr < float("inf") and 0 <= decay < float("inf")):
        raise errors.UserError(f"lr is {lr} and weight_decay {decay}: both are to be from 0 on")
    if not (all(0 <= beta < 1 for beta in betas) and 0 < eps < float("inf")):
        raise errors.UserError(f"betas are {betas} and eps {eps}: give betas from 0 to below 1, and an eps above 0")
    if moment_bits == 16 and betas[1] > _LARGEST_BETA2_OF_BF16:
        raise errors.UserError(
            f"betas are {betas}: in bf16, second moments whose beta is above {_LARGEST_BETA2_OF_BF16} lose their "
            "decay to rounding; give a beta of 0.99, or state_dtype=torch.float32"
        )


def updates_of(groups):
    """The groups' settings as the engine takes them."""
    return [
        (float(g["lr"]), float(g["betas"][0]), float(g["betas"][1]), float(g["eps"]), float(g["weight_decay"]))
        for g in groups
    ]


