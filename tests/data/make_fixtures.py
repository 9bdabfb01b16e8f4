#!/usr/bin/env python3
"""Regenerates tests/fixtures/data/*.json: expectations computed apart from the C++ code.

usage: make_fixtures.py OUTPUT_DIRECTORY

loss.json   transformers' own causal language model loss (which shifts the labels) for a few token id records.
order.json  epoch orders from a restatement of the generator that src/data/sampler.h documents.
packing.json  rows from a restatement of the rule that src/data/packing.h documents.
"""
import json
import pathlib
import random
import sys

import torch
import transformers
from transformers.loss.loss_utils import ForCausalLMLoss

MASK = (1 << 64) - 1


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def epoch_order(count, seed, epoch):
    state = mix((mix(seed) + epoch) & MASK)

    def below(n):
        nonlocal state
        while True:
            state = (state + 0x9E3779B97F4A7C15) & MASK
            r = mix(state)
            if r >= (1 << 64) % n:
                return r % n

    order = list(range(count))
    for i in range(count - 1, 0, -1):
        j = below(i + 1)
        order[i], order[j] = order[j], order[i]
    return order


def pack(lengths, row_length, window):
    rows, is_open = [], []
    for document, length in enumerate(lengths):
        candidates = [r for r in range(len(rows)) if is_open[r]]
        used = lambda r: sum(lengths[d] for d in rows[r])
        fitting = [r for r in candidates if used(r) + length <= row_length]
        if fitting:
            row = fitting[0]
        else:
            if len(candidates) == window:
                is_open[max(candidates, key=lambda r: (used(r), -r))] = False
            rows.append([])
            is_open.append(True)
            row = len(rows) - 1
        rows[row].append(document)
        if used(row) == row_length:
            is_open[row] = False
    return rows


def loss_cases():
    generator = torch.Generator().manual_seed(1)
    vocabulary = 6
    for ids, labels in [
        ([1, 2, 3, 4], None),
        ([1, 2, 3, 4, 5], [-100, -100, 3, 4, 5]),
        ([5, 0, 5, 1], [5, -100, 2, -100]),
        ([2, 3], [-100, 0]),
    ]:
        logits = torch.randn(1, len(ids), vocabulary, generator=generator)
        target = torch.tensor([labels if labels is not None else ids])
        loss = ForCausalLMLoss(logits, target, vocab_size=vocabulary).item()
        case = {"input_ids": ids, "logits": logits[0].tolist(), "loss": loss}
        if labels is not None:
            case["labels"] = labels
        yield case


def main():
    out = pathlib.Path(sys.argv[1])
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    (out / "loss.json").write_text(json.dumps({"versions": versions, "cases": list(loss_cases())}, indent=1) + "\n")

    orders = [
        {"count": count, "seed": seed, "epoch": epoch, "order": epoch_order(count, seed, epoch)}
        for count, seed, epoch in [(1, 0, 0), (2, 7, 0), (10, 0, 0), (10, 0, 1), (10, 1, 0), (37, MASK, 5)]
    ]
    (out / "order.json").write_text(json.dumps({"cases": orders}) + "\n")

    # First documents of more than half a row, more than the window holds, so that rows close early; then short ones,
    # which would have fitted into those.
    generator = random.Random(3)
    lengths = generator.choices(range(55, 95), k=120) + generator.choices(range(4, 40), k=200)
    rows = pack(lengths, 100, 64)
    assert all(pack(lengths, 100, other) != rows for other in (63, 65)), "the lengths must exercise the window"
    (out / "packing.json").write_text(json.dumps({"row_length": 100, "lengths": lengths, "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
