#!/usr/bin/env python3
"""Makes a Hugging Face directory with random weights and a data file to go with it, for benchmarks and trials.

    python make_random_model.py OUT --family qwen3 --hidden_size 1024 --intermediate_size 3072 --layers 4 \\
        --heads 16 --kv_heads 8 --head_dim 128 --vocab_size 32000 --tied --documents 64 --max_length 512

OUT/model is the directory, OUT/data.jsonl holds {"input_ids", "labels"} records with lengths drawn evenly between half of
max_length and all of it. Needs torch and transformers.
"""
import argparse
import json
import pathlib
import random

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--family", choices=["llama", "qwen3"], default="qwen3")
    for name, default in (("hidden_size", 256), ("intermediate_size", 768), ("layers", 4), ("heads", 8), ("kv_heads", 4),
                          ("head_dim", 32), ("vocab_size", 4096), ("documents", 64), ("max_length", 256), ("seed", 1)):
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--tied", action="store_true", help="tie_word_embeddings")
    p.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of the stored weights")
    a = p.parse_args()

    torch.manual_seed(a.seed)
    config_class, model_class = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}[a.family]
    model = model_class(config_class(
        vocab_size=a.vocab_size, hidden_size=a.hidden_size, intermediate_size=a.intermediate_size,
        num_hidden_layers=a.layers, num_attention_heads=a.heads, num_key_value_heads=a.kv_heads, head_dim=a.head_dim,
        max_position_embeddings=max(4096, a.max_length), tie_word_embeddings=a.tied))
    a.out.mkdir(parents=True, exist_ok=True)
    model.to(getattr(torch, a.dtype)).save_pretrained(a.out / "model")

    rng = random.Random(a.seed)
    with open(a.out / "data.jsonl", "w") as f:
        for _ in range(a.documents):
            ids = [rng.randrange(3, a.vocab_size) for _ in range(rng.randint(a.max_length // 2, a.max_length))]
            f.write(json.dumps({"input_ids": ids, "labels": ids}) + "\n")
    print(f"{a.out}: {sum(x.numel() for x in model.parameters()) / 1e6:.1f} M parameters, {a.documents} documents")


if __name__ == "__main__":
    main()
