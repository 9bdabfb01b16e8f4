#!/usr/bin/env python3
"""transformers.Trainer with superoffload.AdamW, on the quickstart's data: a minute on a CPU.

    scripts/make_debian_dataset.sh train.jsonl eval.jsonl
    python recipes/pytorch_trainer.py train.jsonl eval.jsonl [--max_steps 40] [--deepspeed ds_config.json]

The model is a smaller one than the quickstart's, with random weights. With a GPU it trains there, and the CPU updates
it. --deepspeed takes the optimizer's arguments from a DeepSpeed configuration. Needs superoffload, torch, transformers
and accelerate.
"""
import argparse
import json
import pathlib

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast, Trainer, TrainingArguments

import superoffload

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROMPT = "### Instruction:\n{instruction}\n\n### Response:\n"


def read(path, tokenizer, length):
    """Rows of token ids; the prompt is read and not learnt."""
    rows = []
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        prompt = tokenizer(PROMPT.format(**record))["input_ids"]
        answer = tokenizer(record["output"])["input_ids"] + [tokenizer.eos_token_id]
        ids, labels = (prompt + answer)[:length], ([-100] * len(prompt) + answer)[:length]
        gap = length - len(ids)
        rows.append(
            {
                "input_ids": ids + [tokenizer.eos_token_id] * gap,
                "attention_mask": [1] * len(ids) + [0] * gap,
                "labels": labels + [-100] * gap,
            }
        )
    return rows


def main(arguments=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("train")
    p.add_argument("eval")
    p.add_argument("--output_dir", default="pytorch-output")
    p.add_argument("--max_steps", type=int, default=40)
    p.add_argument("--max_length", type=int, default=96)
    p.add_argument("--deepspeed", help="a DeepSpeed configuration, for the optimizer's arguments")
    a = p.parse_args(arguments)

    torch.manual_seed(1)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(ROOT / "assets" / "tokenizer")
    config = json.loads((ROOT / "configs" / "quickstart.json").read_text())
    config.pop("torch_dtype")
    config |= {"hidden_size": 192, "num_attention_heads": 3, "num_key_value_heads": 1, "num_hidden_layers": 4}
    config["intermediate_size"] = 512
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))

    settings = superoffload.from_deepspeed(a.deepspeed) if a.deepspeed else {"weight_decay": 0.1}
    settings.setdefault("lr", 2e-3)
    weight_decay = settings.pop("weight_decay", 0.0)  # a Trainer brings it into the parameter groups
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            a.output_dir,
            max_steps=a.max_steps,
            per_device_train_batch_size=8,
            lr_scheduler_type="cosine",
            warmup_steps=5,
            weight_decay=weight_decay,
            max_grad_norm=1.0,
            logging_steps=20,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            seed=1,
        ),
        train_dataset=read(a.train, tokenizer, a.max_length),
        eval_dataset=read(a.eval, tokenizer, a.max_length)[:48],
        optimizer_cls_and_kwargs=(superoffload.AdamW, settings),
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    trainer.save_model()
    print(f"loss on held-out records: {before:.3f} before, {after:.3f} after {a.max_steps} steps")
    return before, after


if __name__ == "__main__":
    main()
