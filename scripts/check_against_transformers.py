#!/usr/bin/env python3
"""Loads a saved model directory with transformers and fails on anything that is not exactly right.

    python check_against_transformers.py OUT_DIR [--compare DIR [--tolerance X]]

Fails (exit code 1) on a missing, unexpected or mismatched key, on any warning while loading, on non-finite logits, and,
with --compare, when the two directories' weights or logits differ by more than X (default 0: the same bytes). Prints the
parameter count, a checksum of the weights and one of the logits of a fixed prompt, each comparable between runs on one
machine. Needs torch and transformers.
"""
import argparse
import hashlib
import logging
import pathlib
import sys
import warnings

import torch
import transformers
from transformers import AutoModelForCausalLM


class Collector(logging.Handler):
    """Keeps every warning of a library that logs rather than warns."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def load(directory, problems):
    collector = Collector()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.get_logger().addHandler(collector)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, info = AutoModelForCausalLM.from_pretrained(
            directory, local_files_only=True, output_loading_info=True, attn_implementation="eager")
    transformers.utils.logging.get_logger().removeHandler(collector)
    for what, keys in info.items():
        if keys:
            problems.append(f"{directory}: {what}: {sorted(keys) if not isinstance(keys, (str, bytes)) else keys}")
    for message in collector.messages + [str(w.message) for w in caught]:
        problems.append(f"{directory}: warning: {message}")
    if (pathlib.Path(directory) / "tokenizer.json").exists():
        transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)
    return model.eval()


def checksum(tensors):
    h = hashlib.sha256()
    for t in tensors:
        h.update(t.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return h.hexdigest()[:16]


def logits_of(model):
    config = model.config.get_text_config()
    ids = torch.tensor([[(7 + 31 * i) % config.vocab_size for i in range(min(64, config.max_position_embeddings))]])
    with torch.no_grad():
        return model.float()(input_ids=ids, use_cache=False).logits


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("directory")
    p.add_argument("--compare", metavar="DIR", help="another directory that must hold the same model")
    p.add_argument("--tolerance", type=float, default=0.0, help="largest |difference| / norm of a tensor, and of the logits")
    a = p.parse_args()

    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    problems, models = [], []
    for directory in filter(None, (a.directory, a.compare)):
        model = load(directory, problems)
        names, dtype = dict(model.named_parameters()), model.dtype
        weights = checksum(names[n] for n in sorted(names))
        logits = logits_of(model)
        if not torch.isfinite(logits).all():
            problems.append(f"{directory}: logits are not finite")
        print(f"{directory}: {type(model).__name__}, {sum(x.numel() for x in names.values())} parameters, {dtype}, "
              f"weights {weights}, logits {checksum([logits])} (sum {logits.double().sum().item():.10g})")
        models.append((dict(model.named_parameters()), logits))

    if a.compare:
        (left, left_logits), (right, right_logits) = models
        if left.keys() != right.keys():
            problems.append(f"names differ: {sorted(left.keys() ^ right.keys())}")
        pairs = [(n, left[n], right[n]) for n in sorted(left.keys() & right.keys())] + [("logits", left_logits, right_logits)]
        worst = (0.0, "")
        for name, x, y in pairs:
            if x.shape != y.shape:
                problems.append(f"{name}: shapes {tuple(x.shape)} and {tuple(y.shape)}")
                continue
            difference = ((x.double() - y.double()).norm() / y.double().norm().clamp_min(1e-300)).item()
            worst = max(worst, (difference, name))
            if not difference <= a.tolerance:
                problems.append(f"{name}: differs by {difference:.3g} of its norm")
        print(f"largest difference: {worst[0]:.3g} of the norm{' in ' + worst[1] if worst[1] else ''}")

    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
