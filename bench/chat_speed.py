"""Measures how fast conversations are rendered and tokenised.

usage: chat_speed.py PROGRAM TOKENIZER_DIR TEMPLATE... [--megabytes 50]
Makes a file of conversations (one to three turns of 50 to 1,800 bytes, words of this repository's documents), a small
model with the tokenizer and each chat template, and lets `train` tokenise the file on one core (taskset -c 0). Prints
bytes of the file by seconds of CPU, those of the Python child included, by the wall clock, and the largest share of the
program's memory that is no file's.
"""

import argparse
import json
import pathlib
import random
import re
import resource
import shutil
import subprocess
import tempfile
import time

CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 32, "intermediate_size": 64,
          "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
          "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True,
          "torch_dtype": "float32", "hidden_act": "silu"}


def make_data(file, size):
    documents = pathlib.Path(__file__).parent.parent / "docs"
    words = " ".join(path.read_text() for path in sorted(documents.rglob("*.md"))).split()
    rng = random.Random(1)

    def text(low, high):
        begin = rng.randrange(len(words) - 400)
        return " ".join(words[begin:begin + rng.randint(low, high) // 6])

    with open(file, "w") as out:
        while out.tell() < size:
            messages = [{"role": "system", "content": "You are helpful."}]
            for _ in range(rng.choice([1, 1, 2, 3])):
                messages += [{"role": "user", "content": text(50, 400)},
                             {"role": "assistant", "content": text(200, 1800)}]
            out.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")


def own_memory(process):
    """The largest anonymous memory while it runs, in MB."""
    most = 0
    while process.poll() is None:
        try:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            most = max(most, int(re.search(r"RssAnon:\s+(\d+)", status).group(1)))
        except (OSError, AttributeError):
            pass
        time.sleep(0.05)
    return most / 1000


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("tokenizer", type=pathlib.Path)
    parser.add_argument("templates", nargs="+", type=pathlib.Path)
    parser.add_argument("--megabytes", type=float, default=50)
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        here = pathlib.Path(place)
        make_data(here / "chats.jsonl", o.megabytes * 1e6)
        tokens = json.loads((o.tokenizer / "tokenizer.json").read_text())
        most = max([*tokens["model"]["vocab"].values(), *(t["id"] for t in tokens["added_tokens"])])
        (here / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": most + 1}))
        subprocess.run([o.program, "init", "--config", here / "config.json", "--tokenizer", o.tokenizer, "--output_dir",
                        here / "model", "--quiet"], check=True)
        size = (here / "chats.jsonl").stat().st_size
        for template in o.templates:
            shutil.copy(template, here / "model" / "chat_template.jinja")
            before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            process = subprocess.Popen(
                ["taskset", "-c", "0", o.program, "train", "--model", here / "model", "--data", here / "chats.jsonl",
                 "--output_dir", here / "out", "--overwrite_output_dir", "--max_steps", "1", "--batch_size", "1",
                 "--max_length", "2048", "--device", "cpu", "--quiet", "--cache_dir", here / template.stem])
            memory = own_memory(process)
            wall = time.monotonic() - start
            if process.returncode != 0:
                raise SystemExit(f"{template}: train failed")
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            print(f"{template.stem}: {size / cpu / 1e6:.1f} MB/s of CPU, {size / wall / 1e6:.1f} MB/s of wall clock, "
                  f"{memory:.0f} MB of own memory", flush=True)


main()
