"""SuperOffload: full-parameter fine-tuning of language models that are too large for the GPU.

    import superoffload
    superoffload.train(model="Qwen3-0.6B", data="alpaca.jsonl", output_dir="out", max_length=1024)

The package carries the program `superoffload`, which train() runs, and which is a command where the package is
installed.
"""
from superoffload.errors import Bug, Error, Interrupted, SystemFailure, UserError
from superoffload.training import train

__all__ = ["Bug", "Error", "Interrupted", "SystemFailure", "UserError", "train"]
