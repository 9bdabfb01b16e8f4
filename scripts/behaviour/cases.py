"""The table of what record_behaviour.py runs. A new or renamed option is a change here and nowhere else.

A case is (group, name, steps). Each case has an empty directory of its own, in which its steps run one after the other.
A step is a command line of the program, or, if it begins with "!", something done to the case's files:
  !recipe NAME ARGUMENTS        a script of recipes/, with MODEL_DIR and the like set
  !write FILE TEXT              TEXT is the rest of the step
  !remove FILE...               files or directories
  !flip FILE                    inverts a byte in the middle
  !fill FILE TENSOR VALUE       sets all of an fp32 tensor of a safetensors file
  !edit FILE JSON               replaces the values of these keys of a JSON file
Beside the case's directory lie models/ (tests/fixtures/models), tokenizers/ (tests/fixtures/tokenizer), configs/,
deepspeed/ (fuzz/corpus/deepspeed_config) and data/ (the texts below).
"""
import json

# ---------------------------------------------------------------------------------------------------------- training

# What every training has, unless its row says otherwise.
TRAIN = (
    "--seed 1 --max_steps 6 --num_train_epochs 20 --batch_size 2 --max_length 48 --lr 2e-3 --warmup 0.1"
    " --save_steps 3 --eval_steps 3 --bucket_size 16384 --cache_dir cache --output_dir out"
)
DTYPES = {"fp32": "--dtype fp32", "bf16": "--dtype bf16"}

# Every model is trained in each of these ways, in fp32; in bf16 in those of BF16_WAYS.
WAYS = {
    "default": "",
    "zerooffload": "--mode zerooffload",
    "ratio 0": "--offload_ratio 0",
    "ratio 0.5": "--offload_ratio 0.5",
    "ratio 0.5, zerooffload": "--offload_ratio 0.5 --mode zerooffload",
    "ratio 1": "--offload_ratio 1",
    "no offload": "--offload_optimizer none",
    "a layer streamed": "--streamed_layers 1 --offload_ratio 0.5",
    "all streamed": "--streamed_layers 1000 --offload_ratio 1",
    "all streamed, zerooffload": "--streamed_layers 1000 --offload_ratio 1 --mode zerooffload",
    "cast on the host": "--cast_side host --offload_ratio 0.5",
    "updates over the link": "--update_over_link --offload_ratio 0.5",
    "updates over the link, all streamed": "--update_over_link --offload_ratio 1 --streamed_layers 1000",
    "moments in bf16": "--optimizer_state_dtype bf16 --adam_beta2 0.99",
    "moments in bf16, ratio 0.5": "--optimizer_state_dtype bf16 --adam_beta2 0.99 --offload_ratio 0.5",
    "3 micro-batches": "--gradient_accumulation_steps 3",
    "3 micro-batches, all streamed": "--gradient_accumulation_steps 3 --streamed_layers 1000",
    "always clipped": "--max_grad_norm 1e-3",
    "sometimes clipped": "--max_grad_norm 3.5",
    "never clipped": "--max_grad_norm 1e6",
    "no clipping": "--max_grad_norm 0",
    "recomputed": "--activation_checkpointing true",
    "all kept": "--activation_checkpointing false",
    "packed": "--packing",
    "packed, 3 micro-batches, recomputed": "--packing --gradient_accumulation_steps 3 --activation_checkpointing",
    "in file order": "--shuffle false",
    "default buckets": "--bucket_size 16777216",
    "smallest buckets": "--bucket_size 4096",
    "cosine, other betas": "--lr_scheduler cosine --adam_beta1 0.8 --adam_beta2 0.95 --adam_epsilon 1e-6",
    "constant, decay": "--lr_scheduler constant --warmup 0 --weight_decay 0.1",
}
# In bf16 alone.
BF16_MORE = {
    "cast on the device": "--cast_side device --offload_ratio 0.5",
    "3 micro-batches, added up in bf16": "--gradient_accumulation_steps 3 --grad_accum_dtype bf16",
}
BF16_WAYS = ["default", "zerooffload", "ratio 0", "ratio 0.5", "no offload", "all streamed", "cast on the host",
             "moments in bf16, ratio 0.5", "3 micro-batches", "never clipped", "recomputed",
             "packed, 3 micro-batches, recomputed"]

# These models are trained in every combination of the following.
CROSSED_MODELS = ["qwen3-tied", "gpt-oss"]
CROSSED = [
    DTYPES,
    {"superoffload": "--mode superoffload", "zerooffload": "--mode zerooffload"},
    {"ratio 0.5": "--offload_ratio 0.5", "ratio 1": "--offload_ratio 1"},
    {"resident": "", "streamed": "--streamed_layers 1000"},
    {"host casts": "--cast_side host", "device casts": "--cast_side device"},
    {"clipped": "--max_grad_norm 1e-3", "sometimes": "--max_grad_norm 3.5"},
    {"1 micro-batch": "", "3 micro-batches": "--gradient_accumulation_steps 3"},
]
CROSSED_ALL = "--max_steps 5 --save_steps 0"
# These leave one of the options nothing to do, and are refused.
CROSSED_OUT = [("fp32", "device casts")]

# With less and less host memory, a plan gives up spare optimizer state (so that weights are previewed, not updated
# ahead of time), then what layers keep for backward, one layer after another; at last it is refused. On a GPU, whose
# memory is not the host's, the same limits are of the host alone.
SQUEEZED = {
    "qwen3-tied": ("--batch_size 6", [16_700, 16_900, 17_100, 17_200, 17_300, 17_400, 17_500, 17_700, 17_800, 17_900,
                                      18_100, 18_300]),
    "llama-untied": ("--batch_size 6 --dtype bf16", [16_600, 16_700, 16_750, 16_800, 16_850, 16_900, 17_000, 17_100]),
    "gpt-oss": ("--batch_size 6", [17_100, 17_400, 17_500, 17_600, 17_700, 17_800, 18_000, 18_200, 18_500]),
}  # options, and limits in thousands of bytes

# A run to step 6 that saves at step 3, then the same from step 3 in another way.
RESUMED = {
    "as it was": ("--dtype bf16", "", ""),
    "host, then streamed": ("--dtype bf16", "--offload_ratio 1", "--streamed_layers 1000 --mode zerooffload"),
    "split, then on the device": ("", "--offload_ratio 0.5", "--offload_optimizer none"),
    "packed": ("--packing --gradient_accumulation_steps 3", "--offload_optimizer none", "--offload_ratio 0.5"),
    "moments in bf16": ("--optimizer_state_dtype bf16 --adam_beta2 0.99", "", "--offload_ratio 0.5"),
    "extended": ("--lr_scheduler constant --warmup 0", "", "--max_steps 8"),
}  # options of both, of the first, of the second
RESUME_REFUSED = {"another learning rate": "--lr 1e-3", "other data": "--data ../models/packed/data.jsonl",
                  "another precision": "--dtype bf16", "fewer steps": "--max_steps 2"}
REWIND = "!remove out/checkpoint-6 out/model.safetensors"

# Trainings of one model that are about other things than the numbers.
OTHER_TRAININGS = {
    "everything said": "--verbose",
    "nothing said": "--quiet",
    "dry run": "--dry_run",
    "dry run, in bf16, split": "--dry_run --dtype bf16 --offload_ratio 0.5 --streamed_layers 1",
    "two checkpoints kept": "--save_steps 1 --save_total_limit 2",
    "whole epochs": "--max_steps -1 --num_train_epochs 2 --batch_size 8 --gradient_accumulation_steps 4 --save_steps 0",
    "logged rarely": "--log_interval 4",
    "benchmark": "--bench_steps 2 --warmup_steps 1 --max_steps -1 --save_steps 0",
    "another seed": "--seed 99",
    "frozen below": "--freeze model.embed_tokens.*,model.layers.0.* --verbose",
    "frozen in part": "--freeze *norm.weight,*.mlp.* --offload_ratio 0.5",
    "learning rates by name": "--lr_multiplier model.embed_tokens.*=0.1,*.k_proj.weight=3,*norm.weight=2 --verbose",
    "a learning rate without a parameter": "--lr_multiplier model.layer.0.*=2",
}
# A closed gate in front of large numbers: the first update opens it, and the next loss is not finite.
DIVERGING = [
    "init --config ../models/llama-untied/model --output_dir model --seed 3",
    "!fill model/model.safetensors model.layers.1.mlp.gate_proj.weight 0",
    "!fill model/model.safetensors model.layers.1.mlp.up_proj.weight 1e36",
]
DIVERGING_RUN = "--model model --lr 1000 --warmup 0 --max_skipped_steps 3 --max_steps 9 --save_steps 1"

# ---------------------------------------------------------------------------------- DeepSpeed files, besides the corpus

RECIPE = '{"train_batch_size": 4, "gradient_accumulation_steps": 1, "bf16": {"enabled": true}, "zero_optimization": %s}'
DEEPSPEED = {
    "published": RECIPE
    % '{"stage": 3, "overlap_comm": false, "reduce_bucket_size": 4e8, "sub_group_size": 4e8, "offload_optimizer":'
    ' {"device": "cpu", "pin_memory": true, "ratio": 0.9, "super_offload": true, "cpuadam_cores_perc": 0.9}}',
    "zero-offload": RECIPE % '{"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true}}',
    "breakdown": '{"wall_clock_breakdown": true, "steps_per_print": 2}',
    "transformers": """{"bf16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW",
                      "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
        "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                      "warmup_num_steps": "auto", "total_num_steps": "auto", "warmup_type": "linear"}},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true},
          "offload_param": {"device": "cpu", "pin_memory": true}, "overlap_comm": true, "contiguous_gradients": true,
          "sub_group_size": 1e9, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
          "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9,
          "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": true},
        "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "steps_per_print": 2000,
        "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": false}""",
    "batch": '{"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2}',
    "batch from the total": '{"train_batch_size": 6, "train_micro_batch_size_per_gpu": 3}',
    "clipping": '{"gradient_clipping": 0.5}',
    "no clipping": '{"gradient_clipping": 0}',
    "fp32": '{"bf16": {"enabled": false}}',
    "bfloat16": '{"bfloat16": {"enabled": true}}',
    "adamw": '{"optimizer": {"type": "AdamW", "params": {"lr": 2e-4, "betas": [0.8, 0.95], "eps": 1e-6,'
    ' "weight_decay": 0.1}}}',
    "warmup": '{"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 3e-4, "warmup_num_steps": 3}}}',
    "warmup, cosine": '{"scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 2}}}',
    "bucket": '{"zero_optimization": {"reduce_bucket_size": 4096}}',
    "cpu_offload": '{"zero_optimization": {"cpu_offload": true, "cpu_offload_use_pin_memory": true}}',
    "device none": '{"zero_optimization": {"offload_optimizer": {"device": "none"}}}',
    "ratio": '{"zero_optimization": {"offload_optimizer": {"ratio": 0.25, "super_offload": true}}}',
    "unused keys": '{"dump_state": true, "aio": {"block_size": 1}, "zero_optimization": {"overlap_comm": true}}',
    "fp16 (refused)": '{"fp16": {"enabled": true}}',
    "nvme (refused)": '{"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}',
    "lamb (refused)": '{"optimizer": {"type": "Lamb"}}',
    "one cycle (refused)": '{"scheduler": {"type": "OneCycle"}}',
    "unknown key (refused)": '{"gradient_cliping": 1}',
    "unknown section (refused)": '{"zero_optimization": {"offload_optimiser": {}}}',
    "type (refused)": '{"gradient_clipping": "yes"}',
    "range (refused)": '{"gradient_clipping": -1}',
    "batch does not agree (refused)": '{"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2}',
    "feature (refused)": '{"wandb": {"enabled": true}}',
    "broken (refused)": '{"zero_optimization": ',
}
CORPUS_FILES = ["auto", "comments", "ranks", "refused", "superoffload"]
RECIPES = {
    "finetune_gpt-oss-20b_1gpu.sh": "superoffload",
    "finetune_llama-70b_4gpu.sh": "superoffload",
    "finetune_llama-8b_1gpu.sh": "zerooffload 2",
    "finetune_phi-4_1gpu.sh": "superoffload",
    "finetune_qwen3-14b_1gpu.sh": "superoffload 1",
    "finetune_qwen3-30b-a3b_2gpu.sh": "zerooffload",
    "finetune_seed-oss-36b_2gpu.sh": "superoffload",
}

# ------------------------------------------------------------------------------------------------------------- plans

PRESETS = ["gpt-oss-20b", "llama-3.1-8b", "llama-3.3-70b", "mixtral-8x7b", "phi-4", "qwen3-0.6b", "qwen3-14b",
           "qwen3-30b-a3b", "qwen3-4b", "seed-oss-36b"]
HARDWARE = ["a100-40g", "gb200", "gh200", "h100-pcie", "h200", "mi300a", "rtx4090"]
# A machine of odd numbers, in the form that superoffload profile writes.
HARDWARE_FILE = json.dumps({
    "name": "of a file", "source": "made up", "device_memory_bytes": 50 * 10**9,
    "host_memory_bytes": 300 * 10**9, "host_threads": 11,
    "rates": {"gemm_flops": 3e14, "device_memory": 2e12, "link_to_host": 2e10, "link_to_device": 2.5e10,
              "host_adamw_bf16": 9e10, "host_adamw_fp32": 8e10, "host_memory": 1.2e11, "kernel_seconds": 2e-6},
})
# Beside the plan that the program makes by itself, for every preset on every machine.
PLANS = {
    "another batch": ("--batch_size 1 --max_length 2048 --gradient_accumulation_steps 4 --optimizer_state_dtype bf16"
                      "", PRESETS, ["h200", "rtx4090"]),
    "as told": ("--mode zerooffload --cast_side device --offload_ratio 1 --streamed_layers 0"
                " --activation_checkpointing", PRESETS, ["gh200"]),
    "frozen": ("--freeze model.embed_tokens.*,model.layers.[0-9].*", ["qwen3-4b", "gpt-oss-20b"], ["h200", "rtx4090"]),
    "on the device": ("--offload_optimizer none", ["qwen3-0.6b", "qwen3-4b"], ["h200", "a100-40g"]),
    "capped": ("--device_memory 30GB --host_memory 100GB", ["qwen3-4b", "phi-4", "gpt-oss-20b"], ["h200"]),
    "fp32": ("--dtype fp32 --bucket_size 67108864", ["qwen3-0.6b"], ["h100-pcie"]),
}
EXPLAINED = ["split", "residency", "streaming", "activations", "undo", "cast"]

# ------------------------------------------------------------------------------------------------------ small commands

TEXTS = {
    "alpaca.json": json.dumps([
        {"instruction": f"Count to {n}.", "input": "" if n % 2 else "in words", "output": "one two three four " * n}
        for n in range(1, 13)
    ]),
    "text.jsonl": "\n".join(
        json.dumps({"text": f"Record {n}<|im_end|>: " + "the quick brown fox jumps over the lazy dog. " * (n % 4)})
        for n in range(1, 13)
    ),
    "mixed.txt": "Hello, world! \u00e9\u00e8 \u4f60\u597d 12345 \U0001f600\n\n\tdef f(x):\n        return x  # it's\r\n"
    "<|im_start|>user<|im_end|> I'll we've  \u00a0 ABC\u0301 1/2",
}
TRAINED_TEXTS = {
    "alone": "",
    "prompt too": "--train_on_prompt",
    "packed": "--packing",
    "special tokens as text": "--parse_special_tokens false",
    "samples": "--sample_prompts ../data/mixed.txt --sample_steps 2 --sample_max_new_tokens 8",
}
TOKENIZERS = ["gpt_oss", "llama3", "mixed", "phi4", "qwen3", "seed_oss"]
TOKENIZATIONS = {
    "file": "--file ../data/mixed.txt",
    "sample": "--file ../tokenizers/sample.txt",
    "plain": "--file ../data/mixed.txt --no_special_tokens --parse_special_tokens false",
    "text": '--text "Hello <|im_end|> world"',
    "decode": "--decode 1,2,300,301",
    "decode (refused)": "--decode 99999999",
}
# One of each family speaks: random weights and Qwen3's test tokenizer.
SPEAKING = ["qwen3-tied", "qwen3-moe", "gpt-oss", "llama-tied-llama3", "mixtral-v4", "mistral", "phi3-v4",
            "qwen2", "seed-oss"]
SPEAKER = '!edit config.json {"vocab_size": 2005}'
SAID = {
    "greedy": "",
    "with a seed": "--temperature 0.8 --seed 7",
    "top k and p": "--temperature 1.2 --top_k 20 --top_p 0.9 --seed 3",
    "alpaca, bf16": "--alpaca --dtype bf16",
}
BENCHED = {
    "default": "",
    "bf16": "--dtype bf16",
    "no optimizer": "--no_optimizer",
    "on the device": "--offload_optimizer none",
    "split": "--offload_ratio 0.5 --mode zerooffload --bucket_size 16384",
    "streamed": "--dtype bf16 --streamed_layers 1000 --cast_side device --bucket_size 16384",
    "moments in bf16": "--optimizer_state_dtype bf16",
    "micro-batches, recomputed": "--gradient_accumulation_steps 3 --activation_checkpointing",
    "rarely clipped": "--max_grad_norm 1e6",
    "frozen below": "--freeze model.embed_tokens.*,model.layers.0.*",
    "frozen in part, no optimizer": "--freeze *norm.weight,*.mlp.* --no_optimizer",
}
COMMANDS = ["train", "init", "eval", "generate", "report", "tokenize", "plan", "profile", "doctor", "verify", "cache",
            "bench step", "bench ops", "bench load"]

# Command lines that are refused, and what is said of them. {train} is a training that would run.
REFUSED = [
    "", "trian", "bench", "bench stop", "train", "plan", "tokenize", "generate", "verify", "verify nowhere",
    "{train} --learning_rate 1", "{train} --lr fast", "{train} --lr -1", "{train} --lr nan",
    "{train} --lr 1e-3 --lr 2e-3",
    "{train} --max_steps 20x", "{train} --batch_size 0", "{train} --dtype fp7", "{train} --lr_scheduler sawtooth",
    "{train} --device abacus", "{train} --device_memory 20GB", '{train} --host_memory "20 gigs"',
    "{train} --host_memory 1MB",
    "{train} --max_length 256", "{train} --max_length 1", "{train} --offload_ratio 1.5", "{train} --streamed_layers -2",
    "{train} --optimizer_state_dtype bf16", "{train} --offload_optimizer none --offload_ratio 0.5",
    "{train} --warmup_steps 3", "{train} --bench_steps 2 --save_steps 3",
    "{train} --eval_steps 2", "{train} --trace out/t.json --max_steps 2", "{train} --trace_steps 3",
    "{train} --sample_steps 2", "{train} --sample_prompts nowhere.txt",
    "{train} --resume nowhere", "{train} --quiet --verbose", "{train} --packing maybe", "{train} stray",
    "{train} --deepspeed_config nowhere.json", "{train} --output_dir ../data/text.jsonl", "{train} --bucket_size 17",
    "{train} --adam_beta2 1", "{train} --max_skipped_steps -1", "{train} --warmup 2", "{train} --seed -1",
    "{train} --pin_memory true", "{train} --cpu_threads 100000",
    "train --model ../models/qwen3-tied --data ../models/qwen3-tied/data.jsonl --output_dir out",
    "train --model nowhere --data ../models/qwen3-tied/data.jsonl --output_dir out",
    "train --model ../models/qwen3-tied/model --data nowhere.jsonl --output_dir out",
    "train --model ../models/qwen3-tied/model --data ../data/alpaca.json --output_dir out --cache_dir cache",
    "train --model ../models/qwen3-tied/model --data ../data/mixed.txt --output_dir out --cache_dir cache",
    "plan --model qwen3-5b", "plan --model qwen3-4b --gpus 2", "plan --model qwen3-4b --hardware tpu",
    "plan --model qwen3-4b --max_length 50000", "plan --model qwen3-4b --offload_optimizer none --offload_ratio 0.5",
    "plan --model llama-3.3-70b", "plan --model qwen3-14b --hardware rtx4090", "plan --model qwen3-4b --explain all",
    "generate --model ../models/qwen3-tied/model --prompt a",
    "generate --model ../models/qwen3-tied/model --top_k 3 --prompt a",
    "tokenize --model ../tokenizers/qwen3", "tokenize --model ../tokenizers/qwen3 --text a --decode 1",
    "eval --model ../models/qwen3-tied/model --data nowhere.jsonl", "init --config qwen3-5b --output_dir new",
    "init --config ../models/qwen3-tied/model --output_dir ../models", "cache --cache_dir cache --prune",
    "cache --cache_dir cache --all", "bench step --config nowhere", "bench load --model nowhere",
]
