#!/usr/bin/env python3
"""Measures PyPI's `tokenizers` on one core, and writes what bench_tokenizer needs to be measured on the same.

Writes to OUT: corpus.txt, 100 MB of what this machine has in /usr/share, /usr/include and Python's library in about equal
parts (documentation; sources of headers and Python; scripts and data; translations in all languages from .mo files),
files shuffled; and two models: llama3/ (on bytes, 64,000 tokens) and llama2/ (on characters with byte fallback, 32,000
tokens), trained on its first 12 MB.

Usage: bench/tokenizer_speed.py OUT      (needs `tokenizers`)
       bench_tokenizer OUT/llama3 OUT/corpus.txt; bench_tokenizer OUT/llama2 OUT/corpus.txt
"""
import gzip
import json
import os
import pathlib
import random
import struct
import sys
import time

os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "tokenizer"))
import make_character_fixtures as characters
from make_fixtures import CL100K, byte_level, sequence, split

BYTES = 100_000_000
SOURCES = (".py", ".h", ".hpp", ".c", ".pyi")
OTHERS = (".py", ".pl", ".pm", ".cmake", ".js", ".h", ".xml", ".html", ".css", ".txt", ".json", ".vim", ".sh", ".md", ".desktop")


def translations(data):
    """The translated strings of a .mo file."""
    if data[:4] != b"\xde\x12\x04\x95":
        return b""
    count, _, table = struct.unpack_from("<III", data, 8)
    entries = (struct.unpack_from("<II", data, table + 8 * i) for i in range(count))
    return b"\n".join(data[at:at + length] for length, at in entries)


def text_of(path):
    """The file's first 400,000 characters; nothing if it is no text."""
    try:
        data = gzip.open(path).read(2_000_000) if path.endswith(".gz") else pathlib.Path(path).read_bytes()[:2_000_000]
        text = (translations(data) if path.endswith(".mo") else data).decode("utf-8")[:400_000]
    except (OSError, EOFError, UnicodeDecodeError, struct.error, gzip.BadGzipFile):
        return b""
    return b"" if "\0" in text else text.encode()


def kind_of(path):
    if path.endswith(".mo"):
        return "translations"
    if path.startswith(("/usr/include", sys.base_prefix + "/lib", "/usr/lib/python3")):
        return "sources" if path.endswith(SOURCES) else None
    if path.startswith(("/usr/share/doc", "/usr/share/info")) or "/man/" in path:
        return "documentation"
    return "others" if path.endswith(OTHERS) else None


def write_corpus(path):
    rng = random.Random(1)
    files = [os.path.join(folder, name) for root in ("/usr/share", "/usr/include", "/usr/lib/python3", sys.base_prefix + "/lib")
             for folder, _, names in os.walk(root) for name in sorted(names)]
    rng.shuffle(files)
    sizes, texts = {}, []
    for file in files:
        kind = kind_of(file)
        if kind is None or os.path.islink(file) or sizes.get(kind, 0) > BYTES // 4:
            continue
        text = text_of(file)
        sizes[kind] = sizes.get(kind, 0) + len(text)
        texts.append(text)
    rng.shuffle(texts)
    path.write_bytes(b"".join(texts)[:BYTES])
    print("corpus:", sizes)


def train(lines, out):
    trainee = Tokenizer(models.BPE())
    trainee.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(CL100K), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trainee.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=64000, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    model = json.loads(trainee.to_str()) | {
        "pre_tokenizer": sequence("pretokenizers", split(CL100K), byte_level(False, True, False)), "decoder": byte_level(True, True, True)}
    model["model"]["ignore_merges"] = True
    characters.write(out / "llama3" / "tokenizer.json", model)
    family = characters.FAMILIES["llama2"]
    characters.write(out / "llama2" / "tokenizer.json", characters.build(family, lines, 32000, 3500, max_token_length=16))


def measure(directory, documents):
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    ids = 0
    start = time.process_time()
    for document in documents:
        ids += len(tokenizer.encode(document, add_special_tokens=False).ids)
    seconds = time.process_time() - start
    size = sum(len(document.encode()) for document in documents)
    print(f"{directory.name}: {size / 1e6:.1f} MB in {seconds:.1f} s of CPU: {size / 1e6 / seconds:.2f} MB/s, {size / ids:.2f} bytes a token")


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    write_corpus(out / "corpus.txt")
    text = (out / "corpus.txt").read_text(encoding="utf-8", errors="replace")
    train(text[:12_000_000].splitlines(keepends=True), out)
    documents = [text[at:at + 4096] for at in range(0, 20_000_000, 4096)]
    for name in ("llama3", "llama2"):
        measure(out / name, documents)


if __name__ == "__main__":
    main()
