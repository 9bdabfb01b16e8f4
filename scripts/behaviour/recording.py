"""Runs the cases and writes down what they left: without times, rates, paths and this machine's memory."""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import struct
import subprocess

TIMEOUT = 300  # seconds a command may take
TREE = pathlib.Path(__file__).resolve().parents[2]

# ------------------------------------------------------------------------------------------ what varies is left out

# Lines of messages: what of them is a time, a rate, or memory that the process or the machine had.
VARYING = [
    (r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", ""),
    (r"\| [\d.e+-]+ tok/s.*", "| ..."),  # the end of a step's line
    (r"^(step \d+: )[\d.]+ s(; overlap efficiency)?.*", r"\1..."),
    (r"^(warm-up step \d+: )[\d.]+ s", r"\1..."),
    (r"^(overlap efficiency: ).*", r"\1..."),
    (r"^(benchmark: \d+ steps, ).*", r"\1..."),
    (r"^(memory: .*host ).*", r"\1..."),
    (r"(disk: .*); .* free", r"\1"),
    (r"^(checkpoint saved: .*), [\d.]+ s\)", r"\1)"),
    (r"(: .*\b\d+ files.* [kMG]?B) in [\d.e-]+ s \(.*\)", r"\1"),  # checking checksums
    (r"(tokens) in [\d.]+ ?s(; steps at .*tok/s)?", r"\1"),
    (r"(; host memory ).*", r"\1..."),  # what was measured beside what was planned
    (r"(program and data so far +).*", r"\1..."),
    (r"^(  in all ).*", r"\1..."),
    (r"^(host memory   ).*", r"\1..."),
    (r"CPU, \d+ threads?", "CPU"),
    (r"large matrix product .*", "large matrix product ..."),  # bench ops
    (r"^( *[\d.]+ (?:bytes|kB|MB)) +\d+ \w+  ", r"\1  "),  # age of a cache
    (r"events\.out\.tfevents\.[\w.-]+", "events.out.tfevents"),
]
VARYING = [(re.compile(pattern), replacement) for pattern, replacement in VARYING]
# Lines that are there or not, by what the host had done when they were written.
TIMED = re.compile(r"^step \d+: buckets of AdamW on the host: ")
# Lines that other threads write: where they stand among the others says nothing.
UNORDERED = re.compile(r"^checkpoint (saved|pruned): ")
# What would make a plan of a large model fit is searched for as long as a limit of time allows.
SEARCHED = re.compile(r"^  --.*\n|; it would fit with .*", re.MULTILINE)

# Keys whose values are times and rates, or follow from them, in what commands print as JSON and in metrics.jsonl.
# Plans are made from rates that are given, so theirs stay.
TIMES = {"step_time_s", "tokens_per_s", "model_tflops", "reference_tflops", "seconds", "host_memory_bytes",
         "step_seconds", "gemm_tflops", "share_of_gemm_limit", "device_wait_seconds_a_step", "device_waits",
         "first_read_seconds", "read_seconds", "copy_seconds", "load_seconds", "load_gb_per_s", "share_of_limit",
         "ratio_to_read_plus_copy", "copy_gb_per_s", "floor_seconds", "share", "age_seconds", "busy_seconds",
         "traced_seconds", "trace_remarks", "host_bytes", "breakdown", "overlap", "overlap_efficiency", "device_seconds",
         "host_seconds"}
# What a plan says of this process.
PROGRAM = "program and data so far"


def load(text):
    """JSON with its numbers as they are written."""
    return json.loads(text, parse_float=str)


def strip_times(value):
    if isinstance(value, dict):
        # What the work of a step is, is known by its rate and its time.
        kept = {key: strip_times(v) for key, v in value.items() if key not in TIMES and not key.endswith("_time_s")}
        if "model_tflops" in value and "step_time_s" in value:
            for rate in ["model_tflops", "reference_tflops"]:
                kept[rate + " x s"] = f"{float(value[rate]) * float(value['step_time_s']):.6g}"
        if kept.get("category") in ("copies", "other kernels"):
            return {key: kept[key] for key in ("name", "category")}
        if "kernels" in kept:  # are listed by their times
            kept["kernels"] = sorted(kept["kernels"], key=lambda kernel: kernel["name"])
            for varying in ("copies", "idle"):
                kept.get("categories", {}).pop(varying, None)
        return kept
    if isinstance(value, list):
        return [strip_times(v) for v in value]
    return value


def strip_program(plan):
    """A plan without the memory that the planning process takes itself."""
    for entry in plan["memory"]:
        if entry["name"] == PROGRAM:
            plan["host_memory"]["planned_bytes"] -= entry.pop("bytes")
    return plan


# -------------------------------------------------------------------------------------------------------- files


def digest(data):
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def scalars(data):
    """Steps, tags and values of a TensorBoard file; times are left out, and values that follow from them."""
    found, at = [], 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        event = fields(data[at + 12 : at + 12 + length])
        for value in fields(event.get(5, b"")).get("all", []) if 5 in event else []:
            parts = fields(value)
            tag = parts.get(1, b"").decode()
            timed = any(word in tag for word in ("time", "tokens_per", "tflops", "memory", "host_bytes"))
            found.append([event.get(2, 0), tag, "..." if timed else repr(parts.get(2))])
        at += 12 + length + 4
    return found


def fields(message):
    """A protobuf message's fields by number, and under "all" those of number 1."""
    found, at = {"all": []}, 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            value = varint()
        elif key & 7 == 2:
            size = varint()
            value, at = message[at : at + size], at + size
        else:
            size = 8 if key & 7 == 1 else 4
            (value,), at = struct.unpack_from("<d" if size == 8 else "<f", message, at), at + size
        found[key >> 3] = value
        if key >> 3 == 1:
            found["all"].append(value)
    return found


class Case:
    """One case in its directory."""

    def __init__(self, recorder, name, steps):
        self.recorder, self.name, self.steps = recorder, name, steps
        self.place = recorder.scratch / f"case-{hashlib.sha256(name.encode()).hexdigest()[:12]}"

    def record(self):
        self.place.mkdir()
        try:
            steps = [self.step(step) for step in self.steps]
            return {"steps": [s for s in steps if s], "files": self.files()}
        finally:
            shutil.rmtree(self.place)

    def step(self, step):
        if not step.startswith("!"):
            return self.run([str(self.recorder.binary), *shlex.split(step)], step, self.recorder.environment)
        action, _, rest = step[1:].partition(" ")
        return getattr(self, action)(rest)

    def run(self, words, command, environment):
        try:
            done = subprocess.run(words, cwd=self.place, env=environment, capture_output=True,
                                  stdin=subprocess.DEVNULL, timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            return {"command": command, "exit": "did not end", "stdout": [], "stderr": []}
        out, said = self.cleaned(done.stdout), self.cleaned(done.stderr)
        if command.startswith("plan"):
            said = SEARCHED.sub("", said)
        try:
            printed = load(out)
            planned = isinstance(printed, dict) and "alternatives" in printed
            printed = strip_program(printed) if planned else strip_times(printed)
        except ValueError:
            printed = self.lines(out)
        return {"command": command, "exit": done.returncode, "stdout": printed, "stderr": self.lines(said)}

    def cleaned(self, data):
        text = data.decode(errors="backslashreplace")
        for path, name in self.recorder.names:
            text = text.replace(path, name)
        return text

    def lines(self, text):
        kept = []
        for line in text.splitlines():
            for pattern, replacement in VARYING:
                line = pattern.sub(replacement, line)
            if not TIMED.match(line):
                kept.append(line)
        return [line for line in kept if not UNORDERED.match(line)] + sorted(filter(UNORDERED.match, kept))

    def recipe(self, rest):
        name, *arguments = shlex.split(rest)
        fixture = "../models/qwen3-tied"
        settings = {"MODEL_DIR": f"{fixture}/model", "DATA": f"{fixture}/data.jsonl", "OUTPUT_DIR": "below/out",
                    "MAX_LENGTH": "48", "SUPEROFFLOAD": str(self.recorder.binary)}
        script = str(TREE / "recipes" / name)
        return self.run([script, *arguments], f"{name} {rest}", {**self.recorder.environment, **settings})

    def write(self, rest):
        name, _, text = rest.partition(" ")
        (self.place / name).write_text(text)

    def remove(self, rest):
        for name in rest.split():
            path = self.place / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def flip(self, name):
        path = self.place / name
        if path.exists():
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 255
            path.write_bytes(data)

    def edit(self, rest):
        name, _, text = rest.partition(" ")
        path = self.place / name
        old = json.loads(path.read_text()) if path.exists() else {}
        new = json.loads((self.place / text[1:]).read_text() if text.startswith("@") else text)
        path.write_text(json.dumps({**old, **new}))

    def fill(self, rest):
        name, tensor, value = rest.split()
        path = self.place / name
        data = bytearray(path.read_bytes())
        (header,) = struct.unpack_from("<Q", data)
        begin, end = (8 + header + at for at in json.loads(data[8 : 8 + header])[tensor]["data_offsets"])
        data[begin:end] = struct.pack("<f", float(value)) * ((end - begin) // 4)
        path.write_bytes(data)

    def files(self):
        found = {}
        for path in sorted(p for p in self.place.rglob("*") if p.is_file()):
            name, data = path.relative_to(self.place).as_posix(), path.read_bytes()
            if path.name.startswith("events.out.tfevents"):
                found[f"{path.parent.relative_to(self.place).as_posix()}/events.out.tfevents"] = scalars(data)
            elif path.suffix == ".tokens":
                found[name] = "there"  # holds the path of its data; `cache` reads it
            elif path.suffix == ".lock" or name == "t.json" and b"traceEvents" not in data[:100]:
                found[name] = "there"
            elif path.name == "run.log":
                found[name] = self.lines(self.cleaned(data)) if self.recorder.is_told(self.name) else "there"
            elif path.name == "metrics.jsonl":
                found[name] = [strip_times(line) for line in map(load, data.decode().splitlines()) if "start" not in line]
            elif path.name in ("trainer_state.json", "checksums.json"):
                found[name] = load(self.cleaned(data))
            elif path.name == ".superoffload-files.json":
                own = load(self.cleaned(data))
                own.pop("checksum", None)  # of a list that has a file's time in its name
                own["files"] = [re.sub(r"(tfevents).*", r"\1", file) for file in own["files"]]
                found[name] = own
            else:
                found[name] = digest(data)
        return found


class Recorder:
    def __init__(self, binary, device, scratch):
        self.binary, self.device, self.scratch = binary.resolve(), device, scratch
        self.names = [(str(scratch), "SCRATCH"), (str(TREE), "TREE"), (str(self.binary), "superoffload")]
        home = scratch / "home"
        home.mkdir()
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LC_ALL": "C"}
        for kept in ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"):
            if kept in os.environ:
                self.environment[kept] = os.environ[kept]

    def is_told(self, name):
        return not re.match("train|crossed|squeezed", name)

    def lay_out(self, texts):
        """What the cases read; returns the models."""
        for name, source in {"models": "tests/fixtures/models", "tokenizers": "tests/fixtures/tokenizer",
                             "configs": "configs", "deepspeed": "fuzz/corpus/deepspeed_config"}.items():
            shutil.copytree(TREE / source, self.scratch / name)
        for file in (self.scratch / "deepspeed").iterdir():
            file.write_bytes(file.read_bytes()[1:])  # the first byte is for the fuzzer: a number of ranks
        (self.scratch / "data").mkdir()
        for name, text in texts.items():
            (self.scratch / "data" / name).write_text(text)
        weights = sorted((self.scratch / "models").glob("*/m*/config.json"))
        return {path.parts[-3]: path.parts[-2] for path in weights}

    def record(self, cases, jobs):
        """{group: {name: what was seen}}"""
        found, cases = {}, list(cases)
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            runs = [pool.submit(Case(self, f"{group}: {name}", steps).record) for group, name, steps in cases]
            for (group, name, _), run in zip(cases, runs):
                if name in found.setdefault(group, {}):
                    raise ValueError(f"two cases are called {group}: {name}")
                found[group][name] = run.result()
        return found
