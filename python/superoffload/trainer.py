"""What a transformers.Trainer knows of an optimizer that it makes, and does not pass on.

Trainer(optimizer_cls_and_kwargs=(superoffload.AdamW, {})) gives parameter groups with their weight decay, and the dict.
The learning rate, the betas and eps of its TrainingArguments reach only optimizers that it has a name for. Whoever set
them there means them, so the optimizer looks for the Trainer that makes it.
"""
import dataclasses
import sys
import warnings

# By argument of the optimizer, the names in TrainingArguments.
_NAMES = {"lr": ("learning_rate",), "betas": ("adam_beta1", "adam_beta2"), "eps": ("adam_epsilon",)}


def complete(cls, given):
    """`given`: lr, betas and eps as the constructor of `cls` got them, None where it did not. Sets those of a Trainer.

    What was given to the optimizer itself counts, with a warning if the Trainer was told something else.
    """
    arguments = _arguments_of_caller(cls)
    if arguments is None:
        return
    defaults = {field.name: field.default for field in dataclasses.fields(arguments)}
    for name, theirs in _NAMES.items():
        values = tuple(getattr(arguments, other) for other in theirs)
        own = given[name]
        if own is None:
            given[name] = values if name == "betas" else values[0]
            continue
        pairs = zip(theirs, values, own if name == "betas" else (own,))
        told = [f"{n}={v}" for n, v, mine in pairs if float(v) != float(mine) and v != defaults[n]]
        if told:
            warnings.warn(
                f"{name}={own} of optimizer_cls_and_kwargs counts, and TrainingArguments({', '.join(told)}) has no "
                "effect: give one of them",
                stacklevel=3,
            )


def _arguments_of_caller(cls):
    """The TrainingArguments of the Trainer that is making an optimizer of this class; None: nobody is."""
    module = sys.modules.get("transformers.trainer")
    frame = sys._getframe(1) if module is not None else None
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, module.Trainer):
            asked = getattr(caller, "optimizer_cls_and_kwargs", None)
            return caller.args if asked is not None and asked[0] is cls else None
        frame = frame.f_back
    return None
