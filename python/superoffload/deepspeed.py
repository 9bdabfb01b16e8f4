"""Arguments of superoffload.AdamW from a DeepSpeed configuration."""
import json
import os

from superoffload import errors

_PARAMS = {"lr", "betas", "eps", "weight_decay"}
# What DeepSpeed has of its optimizers that changes no result here.
_IGNORED_PARAMS = {"torch_adam", "fused", "fp32_optimizer_states"}
_ONLY_PARAMS = {"adam_w_mode": True, "bias_correction": True, "amsgrad": False}


def from_deepspeed(config):
    """The arguments of superoffload.AdamW that stand for the optimizer of a DeepSpeed configuration.

        optimizer = superoffload.AdamW(model.parameters(), **superoffload.from_deepspeed("ds_config.json"))

    config: a path of a JSON file, which may have what DeepSpeed allows in it beside JSON (comments, names without
    quotes, commas at the end), or its contents as a dict. Looked at are "optimizer", "gradient_clipping",
    "zero_optimization.offload_optimizer" and "fp16"; the rest is about batches, schedulers and how ranks share a
    model. "auto" leaves a value out, so that the trainer or the default gives it. Values that are absent mean what they
    mean in DeepSpeed: no clipping, and no weight decay where there are "optimizer.params".

    Raises superoffload.UserError for what would train otherwise than in DeepSpeed, with what to change.
    """
    config = _read(config)
    if _section(config, "fp16").get("enabled") is True:
        raise errors.UserError('fp16.enabled is true: superoffload.AdamW is for bf16 and fp32; set "bf16" instead')
    arguments = _of_optimizer(_section(config, "optimizer"))
    clipping = config.get("gradient_clipping", 0)
    if clipping != "auto":
        arguments["max_grad_norm"] = _number(clipping, "gradient_clipping")
    zero = _section(config, "zero_optimization")
    offload = _section(zero, "offload_optimizer")
    device = offload.get("device", "cpu" if zero.get("cpu_offload") else "none")
    if device == "nvme":
        raise errors.UserError('offload_optimizer.device is "nvme": the state is in host memory here; set it to "cpu"')
    if device not in ("cpu", "none"):
        raise errors.UserError(f'offload_optimizer.device is {device!r}: give "cpu" or "none"')
    ratio = offload.get("ratio", 1.0) if device == "cpu" else 0.0
    if ratio != "auto":
        arguments["offload_ratio"] = _number(ratio, "offload_optimizer.ratio")
    cores = offload.get("cpuadam_cores_perc", "auto")
    if cores != "auto":
        share = _number(cores, "offload_optimizer.cpuadam_cores_perc")
        arguments["threads"] = max(1, int(share * len(os.sched_getaffinity(0))))
    return arguments


def _read(config):
    if isinstance(config, (str, os.PathLike)):
        try:
            with open(config, encoding="utf-8") as file:
                text = file.read()
        except (OSError, ValueError) as error:
            raise errors.UserError(f"{os.fspath(config)} is no DeepSpeed configuration: {error}") from None
        from superoffload import _engine  # a library, and only a file needs it

        config = json.loads(_engine.read_deepspeed(text, os.fspath(config)))
    if not isinstance(config, dict):
        raise errors.UserError(f"a DeepSpeed configuration is a JSON object, and this is {type(config).__name__}")
    return config


def _section(config, name):
    section = config.get(name) or {}
    if not isinstance(section, dict):
        raise errors.UserError(f"{name} is {section!r}: it is to be a JSON object")
    return section


def _number(value, name):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise errors.UserError(f"{name} is {value!r}: give a number")
    return float(value)


def _of_optimizer(optimizer):
    if not optimizer:
        return {}  # the script makes it
    kind = optimizer.get("type", "AdamW")
    if kind.lower() not in ("adam", "adamw"):
        raise errors.UserError(f"optimizer.type is {kind!r}: superoffload has AdamW alone")
    params = dict(_section(optimizer, "params"))
    for name, only in _ONLY_PARAMS.items():
        if params.pop(name, only) not in (only, "auto"):
            raise errors.UserError(f"optimizer.params.{name} is not {json.dumps(only)}: AdamW has nothing else here")
    unknown = sorted(set(params) - _PARAMS - _IGNORED_PARAMS)
    if unknown:
        raise errors.UserError(f"optimizer.params.{unknown[0]} is unknown: known are {', '.join(sorted(_PARAMS))}")
    arguments = {name: value for name, value in params.items() if name in _PARAMS and value != "auto"}
    if "weight_decay" not in params:
        arguments["weight_decay"] = 0.0
    if "betas" in arguments:
        arguments["betas"] = tuple(arguments["betas"])
    return arguments
