#!/usr/bin/env python3
"""How fast a checkpoint's optimizer state is loaded, beside a plain read of the same files and a plain copy of as many
bytes, by as many threads. All from the page cache, so the disk does not count.

The state's memory was touched before it is loaded, and so was the plain copy's. The CPU device's bf16 weights, which
the master weights are rounded to on the way, lie in fresh memory, which the kernel clears at the first touch. How long
that takes for as many bytes is in a column of its own; the comparison is without it, so it counts against loading. On
a GPU the weights go there instead; all state stays on the host.

    bench/resume_speed.py [--superoffload build/bin/superoffload] [--config qwen3-0.6b] [--layers 8] [--rounds 5]
                          [--device cpu|cuda]

Makes a model with random weights, trains one step of it, and then resumes the run `rounds` times for one more step
each. Needs disk space for two checkpoints, 14 bytes a parameter each. The three take turns, and the medians
count. A round in which the program had to read from the disk, because memory was too short for the page cache, does
not.
"""

import argparse
import concurrent.futures
import ctypes
import json
import mmap
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

PIECE = 4 << 20  # smaller and larger ones are read no faster


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode not in (0, 130):
        sys.exit(done.stderr)


def pieces(files):
    for file in files:
        for at in range(0, file.stat().st_size, PIECE):
            yield file, at


def in_threads(threads, work, items):
    """Seconds that `work(thread, item)` takes over all items."""
    shares = [items[i::threads] for i in range(threads)]
    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda i: [work(i, item) for item in shares[i]], range(threads)))
    return time.perf_counter() - start


def read_again(files):
    """Has the page cache hold the files in the larger units that reading makes, as it will for `plain`."""
    for file in files:
        with open(file, "rb", buffering=0) as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while f.read(PIECE):
                pass


def huge(size):
    """Fresh memory, as the program maps it."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def plain(files, threads, weights):
    """Seconds of a plain read, of a plain copy to memory that was touched before, and of touching fresh memory for so
    many bytes of weights."""
    buffers = [mmap.mmap(-1, PIECE) for _ in range(threads)]
    handles = {file: os.open(file, os.O_RDONLY) for file in files}
    items = list(pieces(files))
    read = lambda i, item: os.preadv(handles[item[0]], [buffers[i]], item[1])
    in_threads(threads, read, items)  # now the page cache has them
    read_seconds = in_threads(threads, read, items)

    address = lambda buffer: ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    sources = [address(buffer) for buffer in buffers]
    memory = huge(len(items) * PIECE)
    to = address(memory)
    copy = lambda i, number: ctypes.memmove(to + number * PIECE, sources[i], PIECE)
    numbers = list(range(len(items)))
    in_threads(threads, copy, numbers)
    copy_seconds = in_threads(threads, copy, numbers)
    fresh = huge((weights + PIECE - 1) // PIECE * PIECE)
    first = address(fresh)
    touch = lambda i, number: ctypes.memmove(first + number * PIECE, sources[i], PIECE)
    touch_seconds = in_threads(threads, touch, list(range(len(fresh) // PIECE)))
    for handle in handles.values():
        os.close(handle)
    return read_seconds, copy_seconds, touch_seconds


def loading_seconds(log, before):
    """Of the files that the last run has loaded, by what run.log says behind its first `before` bytes."""
    text = log.read_text()[before:]
    return {pathlib.Path(name): float(seconds)
            for name, seconds in re.findall(r"loading (/\S+): \d+ bytes, ([0-9.]+) s", text)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--superoffload", default="build/bin/superoffload")
    p.add_argument("--config", default="qwen3-0.6b", help="a preset")
    p.add_argument("--layers", type=int, default=8)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--folder", help="where the files go for the time of the run")
    a = p.parse_args()
    source = pathlib.Path(__file__).resolve().parent.parent
    threads = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(dir=a.folder) as folder:
        folder = pathlib.Path(folder)
        config = json.loads((source / "configs" / "models" / f"{a.config}.json").read_text())
        config["num_hidden_layers"] = a.layers
        if "layer_types" in config:
            config["layer_types"] = config["layer_types"][:a.layers]
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "data.jsonl").write_text(json.dumps({"input_ids": list(range(1, 33))}) + "\n")
        run(a.superoffload, "init", "--config", str(folder / "config.json"), "--output_dir", str(folder / "model"))
        train = [a.superoffload, "train", "--model", str(folder / "model"), "--data", str(folder / "data.jsonl"),
                 "--output_dir", str(folder / "run"), "--device", a.device, "--batch_size", "1", "--save_steps", "1",
                 "--save_total_limit", "2", "--max_length", "32"]
        if a.device == "cuda":
            train += ["--offload_ratio", "1"]
        run(*train, "--max_steps", "1")
        print("| round | read | copy | load | load / (read + copy) | weights' first touch |\n|---|---|---|---|---|---|")
        rows = []
        for number in range(a.rounds):
            log = folder / "run" / "run.log"
            before = len(log.read_text())
            os.sync()  # giving back pages that are still to be written would wait for the disk
            read_again((folder / "run").glob("checkpoint-*/*.safetensors"))
            from_disk = -resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock * 512
            run(*train, "--resume", "--max_steps", str(number + 2))
            from_disk += resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock * 512
            loaded = loading_seconds(log, before)
            files = sorted(loaded)
            if not files:
                sys.exit(f"{log} names no file that was loaded")
            sizes = {file: file.stat().st_size for file in files}
            size = sum(sizes.values())
            masters = sum(sizes[file] for file in files if file.name == "master.safetensors")
            read, copy, touch = plain(files, threads, masters // 2)
            load = sum(loaded.values())
            cached = from_disk < 0.01 * size
            if cached:
                rows.append((read, copy, load, touch))
            rate = lambda seconds: f"{seconds:.3f} s, {1e-9 * size / seconds:.2f} GB/s"
            print(f"| {number + 1} | {rate(read)} | {rate(copy)} | {rate(load)} | {load / (read + copy):.3f} | "
                  f"{touch:.3f} s |" + ("" if cached else f" does not count: {1e-9 * from_disk:.1f} GB from the disk"),
                  flush=True)
        if not rows:
            sys.exit("every round read from the disk: use fewer --layers")
        read, copy, load, touch = (statistics.median(row[i] for row in rows) for i in range(4))
        print(f"{size} bytes in {len(files)} files, {threads} threads: loading reaches "
              f"{100 * (read + copy) / load:.0f}% of a plain read and copy one behind the other, "
              f"{100 * max(read, copy) / load:.0f}% of the slower of the two" +
              (f"; touching the weights' fresh memory takes {touch:.3f} s by itself" if a.device == "cpu" else ""))


if __name__ == "__main__":
    main()
