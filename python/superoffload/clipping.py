"""torch.nn.utils.clip_grad_norm_ for parameters whose gradients the optimizer has taken.

It finds no gradients there, and would clip nothing. So where there is a superoffload.AdamW, that function asks the
optimizer, which clips in its step(). Trainers, Accelerate and plain loops that clip work as they are.
"""
import functools
import sys

import torch

from superoffload import errors

_NAME = "clip_grad_norm_"


def install(owner_of):
    """`owner_of(parameter)` is the parameter's superoffload.AdamW, or None."""
    original = torch.nn.utils.clip_grad_norm_
    if hasattr(original, "_superoffload_owner_of"):
        return

    @functools.wraps(original)
    def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        owners = {id(owner): owner for owner in map(owner_of, parameters) if owner is not None}
        if not owners:
            return original(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
        if len(owners) > 1:
            raise errors.UserError(f"{_NAME} of the parameters of {len(owners)} optimizers: call it for each of them")
        if float(norm_type) != 2.0:
            raise errors.UserError(f"{_NAME} with norm_type={norm_type}: superoffload.AdamW clips the 2-norm alone")
        (owner,) = owners.values()
        return owner.clip_grad_norm_(max_norm, parameters=parameters, error_if_nonfinite=error_if_nonfinite)

    clip_grad_norm_._superoffload_owner_of = owner_of
    # Also where a module has taken the function by name.
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(_NAME) is original:
            setattr(module, _NAME, clip_grad_norm_)
