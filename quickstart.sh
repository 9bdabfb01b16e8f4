#!/bin/sh
# From a clone to a fine-tuned model: installs what is missing, builds, makes a data set from the package descriptions
# that every Debian machine has, trains a small model on it and shows what it learnt. A few minutes; again, faster.
# usage: quickstart.sh [OUTPUT_DIR]     (default: quickstart-output)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here"
out=${1:-quickstart-output}
say() { printf '\n== %s\n' "$*"; }

# For this machine's GPU; where there is none, the CUDA backend would be compiled for nobody.
gpu=$(scripts/cuda_architectures.sh)

say "Dependencies"
if [ "$gpu" ]; then scripts/install_dependencies.sh; else scripts/install_dependencies.sh cpu; fi

say "Build (build/bin/superoffload)"
if [ ! -f build/CMakeCache.txt ]; then
  if [ -z "$gpu" ]; then
    echo "No NVIDIA GPU here (nvidia-smi names none): for the CPU alone. For a GPU elsewhere, or this machine's once its"
    echo "driver is installed: scripts/install_dependencies.sh && cmake -S . -B build-gpu && cmake --build build-gpu"
  fi
  cmake -S . -B build -G Ninja -DSO_TESTS=OFF "${gpu:--DSO_CUDA=OFF}" >/dev/null
fi
cmake --build build --target superoffload
so=build/bin/superoffload

say "Data: Debian's package descriptions as instructions"
mkdir -p "$out"
if [ ! -s "$out/train.jsonl" ] || [ ! -s "$out/eval.jsonl" ]; then
  if ! scripts/make_debian_dataset.sh "$out/train.jsonl" "$out/eval.jsonl"; then
    # No package lists yet: a fresh machine or container.
    if [ "$(id -u)" = 0 ]; then apt-get update -q; else sudo apt-get update -q; fi
    scripts/make_debian_dataset.sh "$out/train.jsonl" "$out/eval.jsonl"
  fi
fi
echo "$(wc -l <"$out/train.jsonl") records to train on, $(wc -l <"$out/eval.jsonl") held out"

say "A small model with random weights"
$so init --config configs/quickstart.json --tokenizer assets/tokenizer --output_dir "$out/initial" --overwrite_output_dir

say "Training"
$so train --model "$out/initial" --data "$out/train.jsonl" --eval_data "$out/eval.jsonl" --output_dir "$out/model" \
  --overwrite_output_dir --cache_dir "$out/cache" --lr 2e-3 --lr_scheduler cosine --warmup 0.05 --weight_decay 0.1 \
  --batch_size 8 --max_length 256 --max_steps 160 --save_steps 0 --log_interval 20 --chat_template alpaca

say "Before and after, on the held-out records"
printf 'before: '
$so eval --model "$out/initial" --data "$out/eval.jsonl" --max_length 256 --cache_dir "$out/cache"
printf 'after:  '
$so eval --model "$out/model" --data "$out/eval.jsonl" --max_length 256 --cache_dir "$out/cache"

say "Samples"
for question in "What does the Debian package python3-requests do?" "What does the Debian package fonts-noto do?" \
  "Which section of the Debian archive does the package libpng-dev belong to?"; do
  printf "%s\n  " "$question"
  $so generate --model "$out/model" --alpaca --prompt "$question" --max_new_tokens 40 --temperature 0.5 --top_p 0.9
done

say "Done: $out/model loads in transformers (AutoModelForCausalLM.from_pretrained)"
cat <<END
  talk to it       $so chat --model $out/model
  see the run      $so report $out/model --output $out/report.html
  train your own   $so train --model MODEL_DIR --data FILE.jsonl --output_dir out
                   (docs/data.md: the forms of records; $so plan --model MODEL_DIR: whether it fits)
END
