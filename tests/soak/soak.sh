#!/bin/bash
# Trains a small model with random weights through many shapes of batch: sizes 1 to 64, lengths 2 to 32,768 with odd ones
# among them, packed and not, at least 200 steps in all. Every run must end well, give finite losses, and hold the same
# memory at its last step as at its third.
# usage: soak.sh SUPEROFFLOAD DEVICE [WORK_DIR]
set -euo pipefail
so=$1 device=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
work=${3:-$(mktemp -d)}
mkdir -p "$work"

# Records of 1 to about 40,000 tokens, most of them short: one line of words each, from a fixed generator.
awk 'BEGIN {
  s = 12345
  for (i = 0; i < 400; ++i) {
    s = (s * 1103515245 + 12345) % 2147483648
    n = (i % 40 == 0) ? 9000 : (i % 7 == 0) ? 1 + s % 700 : 1 + s % 60
    line = ""
    for (j = 0; j < n; ++j) { s = (s * 1103515245 + 12345) % 2147483648; line = line sprintf("w%d ", int(s / 65536) % 997) }
    printf "{\"text\": \"%s\"}\n", line
  }
}' >"$work/data.jsonl"
cat >"$work/config.json" <<'JSON'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 4096, "hidden_size": 256, "num_hidden_layers": 3,
 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 520, "hidden_act": "silu",
 "max_position_embeddings": 32768, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "attention_bias": false,
 "tie_word_embeddings": true, "eos_token_id": 4093, "torch_dtype": "bfloat16"}
JSON
"$so" init --config "$work/config.json" --tokenizer "$root/assets/tokenizer" --output_dir "$work/model" \
  --overwrite_output_dir >/dev/null 2>"$work/log" || { cat "$work/log"; exit 1; }

steps=0
run() {  # batch_size max_length packing extra...
  local name="batch $1, length $2, packing $3 ${*:4}"
  if ! "$so" train --model "$work/model" --data "$work/data.jsonl" --output_dir "$work/out" --overwrite_output_dir \
    --cache_dir "$work/cache" --device "$device" --dtype bf16 --save_steps 0 --max_steps 12 --lr 1e-4 \
    --batch_size "$1" --max_length "$2" --packing "$3" "${@:4}" >"$work/log" 2>&1; then
    echo "FAILED: $name"; tail -5 "$work/log"; exit 1
  fi
  python3 - "$work/out/metrics.jsonl" "$name" <<'PYTHON'
import json, math, sys
steps = [line for line in map(json.loads, open(sys.argv[1])) if "loss" in line and "step_time_s" in line]
if len(steps) < 12: sys.exit(f"FAILED: {sys.argv[2]}: {len(steps)} steps")
if not all(math.isfinite(s["loss"]) for s in steps): sys.exit(f"FAILED: {sys.argv[2]}: a loss is not finite")
memory = [s["device_memory_bytes"] for s in steps]
if memory[2] != memory[-1]: sys.exit(f"FAILED: {sys.argv[2]}: device memory grew from {memory[2]} to {memory[-1]}")
print(f"{sys.argv[2]}: loss {steps[0]['loss']:.3f} to {steps[-1]['loss']:.3f}")
PYTHON
  steps=$((steps + 12))
}
for packing in false true; do
  run 1 2 $packing
  run 64 17 $packing
  run 3 129 $packing
  run 5 1000 $packing
  run 2 4097 $packing
  run 1 32768 $packing
  run 1 32767 $packing --activation_checkpointing true
  run 7 513 $packing --gradient_accumulation_steps 3
done
run 8 2048 false --offload_optimizer none
run 8 2048 true --offload_optimizer none --activation_checkpointing false
echo "$steps steps, all well"
