#!/usr/bin/env python3
"""Makes assets/tokenizer: a small byte-level BPE tokenizer for the quickstart, the tests and the examples.

Structure: that of Qwen2's tokenizer.json (NFC, the Qwen2 split pattern, byte-level BPE). Vocabulary: 4096 ids, trained on
Debian package names and descriptions (`apt-cache dumpavail`) written as Alpaca records, so that the template's lines
("### Instruction:" and so on) cost few tokens.

Usage: scripts/make_small_tokenizer.py [OUTPUT_DIRECTORY]      (default: assets/tokenizer)
Needs: Python 3.9+, the `tokenizers` package, and `apt-cache` with package lists (apt-get update).
The committed files were made on Debian 12 with tokenizers 0.23; other package lists give another vocabulary.
"""
import json
import pathlib
import subprocess
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

VOCABULARY = 4096
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PREAMBLE = (
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n"
)
PREAMBLE_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
)


def packages():
    """Yields (name, section, description) of every package apt knows, sorted by name, each name once."""
    dump = subprocess.run(["apt-cache", "dumpavail"], check=True, capture_output=True, text=True).stdout
    found = {}
    for record in dump.split("\n\n"):
        fields = {}
        for line in record.splitlines():
            key, colon, value = line.partition(": ")
            if colon and not line.startswith(" "):
                fields[key] = value
        if "Package" in fields and "Description" in fields:
            found.setdefault(fields["Package"], (fields.get("Section", "misc"), fields["Description"]))
    for name in sorted(found):
        yield (name, *found[name])


def alpaca_records():
    """One record a package; every fourth one has an input, as in the Alpaca data."""
    for index, (name, section, description) in enumerate(packages()):
        if index % 4 == 0:
            yield (f"{PREAMBLE_WITH_INPUT}### Instruction:\nWhich Debian package fits this description?\n\n"
                   f"### Input:\n{description}\n\n### Response:\n{name}")
        elif index % 4 == 1:
            yield f"{PREAMBLE}### Instruction:\nIn which section is the Debian package {name}?\n\n### Response:\n{section}"
        else:
            yield f"{PREAMBLE}### Instruction:\nWhat is the Debian package {name}?\n\n### Response:\n{description}"


def main():
    output = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else
                          pathlib.Path(__file__).resolve().parent.parent / "assets" / "tokenizer")
    output.mkdir(parents=True, exist_ok=True)

    tokenizer = Tokenizer(models.BPE(byte_fallback=False, ignore_merges=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
    ])
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(alpaca_records(), trainer)
    # Behind the base vocabulary, as Qwen2 has them.
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    if tokenizer.get_vocab_size() != VOCABULARY:
        sys.exit(f"the text is too short: {tokenizer.get_vocab_size()} tokens instead of {VOCABULARY}")
    (output / "tokenizer.json").write_text(
        json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    config = {
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(token)): {
                "content": token, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                "special": True,
            } for token in SPECIAL_TOKENS
        },
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|endoftext|>",
        "model_max_length": 32768,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    (output / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    sample = next(alpaca_records())
    count = len(tokenizer.encode(sample).ids)
    print(f"wrote {output}: {VOCABULARY} tokens, {len(sample.encode()) / count:.2f} bytes a token on the first record")


if __name__ == "__main__":
    main()
