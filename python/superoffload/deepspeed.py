"""Arguments of superoffload.AdamW from a DeepSpeed configuration."""
import json
import os

from superoffload import errors


def from_deepspeed(config):
    """The arguments of superoffload.AdamW that stand for the optimizer of a DeepSpeed configuration.

        optimizer = superoffload.AdamW(model.parameters(), **superoffload.from_deepspeed("ds_config.json"))

    config: a path of a JSON file, which may have what DeepSpeed allows in it beside JSON (comments, names without
    quotes, commas at the end), or its contents as a dict. Looked at are "optimizer", "gradient_clipping",
    "zero_optimization.offload_optimizer", "fp16" and "bf16"; the rest is about batches, schedulers and how ranks share
    a model. "auto" leaves a value out, so that the trainer or the default gives it. Values that are absent mean what
    they mean in DeepSpeed: no clipping, and no weight decay where there is an "optimizer".

    Raises superoffload.UserError for what would train otherwise than in DeepSpeed, with what to change.
    """
    from superoffload import _engine  # a library, which starting the program does not need

    if isinstance(config, (str, os.PathLike)):
        name = os.fspath(config)
        try:
            with open(config, encoding="utf-8") as file:
                text = file.read()
        except (OSError, ValueError) as error:
            raise errors.UserError(f"{name} is no DeepSpeed configuration: {error}") from None
    else:
        name, text = "the DeepSpeed configuration", json.dumps(config, default=repr)
    arguments = json.loads(_engine.from_deepspeed(text, name, len(os.sched_getaffinity(0))))
    if "betas" in arguments:
        arguments["betas"] = tuple(arguments["betas"])
    return arguments
