"""SuperOffload: full-parameter fine-tuning of language models that are too large for the GPU.

    import superoffload
    superoffload.train(model="Qwen3-0.6B", data="alpaca.jsonl", output_dir="out", max_length=1024)
    optimizer = superoffload.AdamW(model.parameters(), lr=1e-5, max_grad_norm=1.0)

The package carries the program `superoffload`, which train() runs, and which is a command where the package is
installed. AdamW is an optimizer for PyTorch, which is imported only for it.
"""
from superoffload.deepspeed import from_deepspeed
from superoffload.errors import Bug, Error, Interrupted, SystemFailure, UserError
from superoffload.training import train

__all__ = ["AdamW", "Bug", "Error", "Interrupted", "SystemFailure", "UserError", "from_deepspeed", "train"]


def __getattr__(name):
    if name == "__version__":
        from importlib import metadata
        return metadata.version("superoffload")
    if name != "AdamW":
        raise AttributeError(f"module 'superoffload' has no attribute {name!r}")
    try:
        from superoffload.optimizer import AdamW
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UserError("superoffload.AdamW needs PyTorch: pip install torch") from None
    return AdamW
