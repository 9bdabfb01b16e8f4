"""Makes cases of the table: (group, name, steps)."""
import shlex

from behaviour.cases import *


def merged(*texts):
    """Command-line words in which an option's last value stands alone: it may be given once."""
    options = {}
    for text in texts:
        name = None
        for word in shlex.split(text):
            if word.startswith("--"):
                name = word
                options[name] = []
            else:
                options[name].append(word)
    return " ".join(" ".join([name, *map(shlex.quote, values)]) for name, values in options.items())


def products(axes):
    rows = {"": ""}
    for axis in axes:
        rows = {f"{a}, {b}".strip(", "): f"{x} {y}" for a, x in rows.items() for b, y in axis.items()}
    return rows


def all_cases(models, device):
    """`models`: the fixtures with weights, by name, each with the directory that holds them."""
    machine = f"--device {device} --cpu_threads 2"

    def train(model, *more):
        data = f"../models/{model}/data.jsonl"
        return "train " + merged(f"--model ../models/{model}/{models[model]} --data {data} --eval_data {data}",
                                 TRAIN, machine, *more)

    for model in models:
        for dtype, options in DTYPES.items():
            for way in WAYS if dtype == "fp32" else BF16_WAYS:
                yield "train", f"{model}: {dtype}, {way}", [train(model, options, WAYS[way])]
        for way, more in BF16_MORE.items():
            yield "train", f"{model}: bf16, {way}", [train(model, DTYPES["bf16"], more)]
        for way, (both, first, second) in RESUMED.items():
            steps = [train(model, both, first), REWIND, train(model, both, second, "--resume")]
            yield "resume", f"{model}: {way}", steps
    for way, second in RESUME_REFUSED.items():
        yield "resume", f"refused: {way}", [train("qwen3-tied"), REWIND, train("qwen3-tied", second, "--resume")]
    for model in CROSSED_MODELS:
        for way, more in products(CROSSED).items():
            if any(a in way and b in way for a, b in CROSSED_OUT):
                continue
            yield "crossed", f"{model}: {way}", [train(model, CROSSED_ALL, more)]
    for model, (options, limits) in SQUEEZED.items():
        for limit in limits:
            more = f"{options} --host_memory {limit}000 --verbose"
            yield "squeezed", f"{model}: {limit} kB", [train(model, more)]
            if limit % 200 == 100:
                yield "squeezed", f"{model}: {limit} kB, zerooffload", [train(model, more, "--mode zerooffload")]
    yield from other_trainings(train)
    yield from deepspeed_cases(machine)
    yield from plan_cases(models)
    yield from small_commands(models, machine)
    yield from refusals(train)


def speaker(model):
    """A model with a tokenizer, in model/."""
    return [f"!edit config.json @../models/{model}/model/config.json", SPEAKER,
            "init --config config.json --tokenizer ../tokenizers/qwen3 --output_dir model"]


def other_trainings(train):
    model = "qwen3-tied"
    for name, more in OTHER_TRAININGS.items():
        yield "other", name, [train(model, more)]
    again = [train(model), train(model), train(model, "--overwrite_output_dir")]
    yield "other", "an output directory that holds a run", again
    yield "other", "a finished run, resumed", [train(model), train(model, "--resume")]
    yield "other", "steps that are not finite", [*DIVERGING, train("llama-untied", DIVERGING_RUN)]
    for data in ["alpaca.json", "text.jsonl"]:
        for name, more in TRAINED_TEXTS.items():
            options = f"--model model --data ../data/{data} --eval_data ../data/{data} --max_length 128"
            yield "other", f"{data}, {name}", [*speaker(model), train(model, options, more)]


def deepspeed_cases(machine):
    def run(file):  # what a file may set is not given beside it
        kept = f"--model ../models/qwen3-tied/model --data ../models/qwen3-tied/data.jsonl {machine} --max_steps 4"
        return "train " + merged(kept, f"--output_dir out --cache_dir cache --verbose --deepspeed_config {file}")

    for name, text in DEEPSPEED.items():
        yield "deepspeed", name, ["!write ds.json " + " ".join(text.split()), run("ds.json")]
    for name in CORPUS_FILES:
        yield "deepspeed", f"corpus: {name}", [run(f"../deepspeed/{name}.json")]
    for name, arguments in RECIPES.items():
        yield "deepspeed", f"recipe: {name}", [f"!recipe {name} {arguments} --dry_run {machine} --cache_dir cache"]
    yield "deepspeed", "recipe: trained", [
        f"!recipe finetune_qwen3-14b_1gpu.sh superoffload 1 {machine} --cache_dir cache --max_steps 3"
    ]


def plan_cases(models):
    for preset in PRESETS:
        for machine in HARDWARE:
            yield "plan", f"{preset} on {machine}", [f"plan --model {preset} --hardware {machine} --json"]
    for name, (options, presets, machines) in PLANS.items():
        for preset in presets:
            for machine in machines:
                yield "plan", f"{preset} on {machine}, {name}", [
                    f"plan --model {preset} --hardware {machine} --json --explain cast {options}"
                ]
    for choice in EXPLAINED:
        yield "plan", f"{choice} explained", [f"plan --model qwen3-14b --explain {choice}"]
    yield "plan", "in words", ["plan --model gpt-oss-20b --hardware gh200 --verbose"]
    yield "plan", "with a trace", ["plan --model qwen3-4b --hardware rtx4090 --trace t.json"]
    by_file = "plan --model qwen3-4b --hardware hardware.json --json"
    yield "plan", "by a file", [f"!write hardware.json {HARDWARE_FILE}", by_file]
    for model, directory in models.items():
        plan = f"plan --model ../models/{model}/{directory} --batch_size 2 --max_length 48 --hardware rtx4090 --json"
        yield "plan", f"fixture {model}", [f"{plan} --explain split"]


def small_commands(models, machine):
    for model, directory in models.items():
        place, data = f"--model ../models/{model}/{directory}", f"--data ../models/{model}/data.jsonl"
        for name, more in {"fp32": "--dtype fp32 --json", "bf16": "--dtype bf16 --json",
                           "in words": "--packing --max_length 48 --batch_size 3"}.items():
            yield "eval", f"{model}: {name}", [f"eval {place} {data} {machine} --cache_dir cache {more}"]
        for name, more in {"default": "", "bf16": "--dtype bf16 --seed 5"}.items():
            yield "init", f"{model}: {name}", [f"init --config ../models/{model}/{directory} --output_dir new {more}"]
        yield "bench", f"{model}: a step", [
            f"bench step --config ../models/{model}/{directory} {machine} --batch_size 2 --max_length 40 --steps 2"
            " --warmup 1 --json"
        ]
    for name, more in BENCHED.items():
        for model in CROSSED_MODELS:
            yield "bench", f"{model}: {name}", [
                f"bench step --config ../models/{model}/model {machine} --batch_size 2 --max_length 40 --steps 2"
                f" --warmup 1 --json {more}"
            ]
    yield "bench", "operations", [f"bench ops --config ../models/qwen3-tied/model {machine} --tokens 16 --json"]
    yield "bench", "loading", [f"bench load --model ../models/qwen3-tied/model {machine} --rounds 1 --json"]
    for tokenizer in TOKENIZERS:
        for name, more in TOKENIZATIONS.items():
            command = f"tokenize --model ../tokenizers/{tokenizer} {more}"
            yield "tokenize", f"{tokenizer}: {name}", [command, f"{command} --json"]
    for model in SPEAKING:
        said = f'generate --model model {machine} --max_new_tokens 24 --prompt "The quick brown"'
        loss = f"eval --model model {machine} --cache_dir cache --json --data ../data/"
        yield "generate", model, [*speaker(model), *(f"{said} {more}" for more in SAID.values()), f"{said} --json",
                                  f"{loss}alpaca.json", f"{loss}text.jsonl"]
    run = "train " + merged("--model ../models/qwen3-tied/model --data ../models/qwen3-tied/data.jsonl", TRAIN, machine)
    run = run.replace(" --eval_steps 3", "")
    yield "verify", "whole, then damaged", [
        run, "verify out", "verify out --json", "!flip out/checkpoint-3/exp_avg.safetensors", "verify out",
        "verify out/checkpoint-6 --json", "!remove out/model.safetensors", "verify out --json"
    ]
    for model, directory in models.items():
        yield "verify", f"without checksums: {model}", [f"verify ../models/{model}/{directory} --json"]
    listed, pruned = "cache --cache_dir cache", "cache --cache_dir cache --prune --json"
    yield "cache", "listed and removed", [
        run, f"{listed} --json", f"{pruned} --older_than 1", f"{pruned} --all", listed
    ]
    yield "help", "program", ["--help", "--version"]
    for command in COMMANDS:
        yield "help", command, [f"{command} --help"]


def refusals(train):
    would_run = without(without(train("qwen3-tied"), "--eval_data"), "--eval_steps")
    for line in REFUSED:
        command = line
        if line.startswith("{train}"):  # a training that runs, but for the options of the line
            rest, command = line.removeprefix("{train}").strip(), would_run
            for word in rest.split():
                command = without(command, word) if word.startswith("--") else command
            command = f"{command} {rest}"
        yield "refused", line or "(nothing)", [command]


def without(command, option):
    """The command without an option and its value."""
    words, kept, skipping = shlex.split(command), [], False
    for word in words:
        skipping = word == option or (skipping and not word.startswith("--"))
        if not skipping:
            kept.append(word)
    return shlex.join(kept)
