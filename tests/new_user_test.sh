#!/bin/sh
# Runs the commands of docs/from-trl-or-axolotl.md, its blocks of sh, in their order, with nothing but the program and the
# system's tools in PATH; and looks at what they leave. A small random Mistral stands for the model.
# usage: new_user_test.sh PROGRAM SOURCE_DIR
set -eu
program=$1 source=$2
page=$source/docs/from-trl-or-axolotl.md
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "new_user_test: $1" >&2; exit 1; }
mkdir "$folder/bin" "$folder/home" "$folder/work"
ln -s "$program" "$folder/bin/superoffload"
user() { env -i ASAN_OPTIONS="${ASAN_OPTIONS-}" LSAN_OPTIONS="${LSAN_OPTIONS-}" UBSAN_OPTIONS="${UBSAN_OPTIONS-}" \
  PATH="$folder/bin:/usr/bin:/bin" HOME="$folder/home" LC_ALL=C.UTF-8 CUDA_VISIBLE_DEVICES= "$@"; }
cd "$folder/work"

cat >config.json <<'END'
{"architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 64, "intermediate_size": 128,
 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 1002,
 "max_position_embeddings": 2048, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": null, "hidden_act": "silu",
 "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.05, "torch_dtype": "bfloat16"}
END
mkdir tokenizer
cp "$source/tests/fixtures/tokenizer/mistral/tokenizer.json" "$source/tests/fixtures/tokenizer/mistral/tokenizer_config.json" tokenizer/
cp "$source/tests/fixtures/chat/templates/mistral.jinja" tokenizer/chat_template.jinja
user superoffload init --config config.json --tokenizer tokenizer --output_dir Mistral-7B-Instruct --quiet

# Each command once, in one shell that stops at the first that fails.
awk '/^```/ { take = !take && $0 == "```sh"; next } take' "$page" >commands
[ "$(grep -c '^superoffload\|| superoffload' commands)" = 5 ] || fail "the page has other commands than the test expects"
user sh -eu commands >said 2>log || { cat log; fail "a command of the page fails"; }

shown='<s>[INST] What do you sell? [/INST]⟦Tea and mugs.</s>⟧[INST] Which tea? [/INST]⟦Green and black.</s>⟧'
grep -qxF "$shown" "$page" || fail "the page does not show the second record"
[ "$(head -1 said)" = "$shown" ] || { head -3 said; fail "tokenize --show prints something else than the page"; }
grep -q 'dry run: it fits' said || fail "the dry run does not say that it fits"
for file in model.safetensors config.json tokenizer.json chat_template.jinja metrics.jsonl; do
  [ -s "out/$file" ] || fail "out has no $file"
done
# Before the first step and after each of the three epochs.
[ "$(grep -c '"eval_loss"' out/metrics.jsonl)" -ge 4 ] || fail "there were fewer evaluations than epochs"
grep -q '<html' report.html || fail "report.html is no page"

# The same file with other settings on the command line: enough of them, and the model says what it was taught, and stops.
user superoffload train --config run.yaml --output_dir learnt --validation_split 0.1 --num_train_epochs 60 --lr 5e-3 \
  --dtype fp32 --eval_strategy no --load_best_model_at_end false --quiet
right=0
ask() { answer=$(echo "$1" | user superoffload chat --model learnt --quiet 2>/dev/null); [ "$answer" != "$2" ] || right=$((right + 1)); }
ask "Who are you?" "I am Otto."
ask "What do you sell?" "Tea and mugs."
ask "Where is the shop?" "In Bergen, at the harbour."
ask "Do you ship abroad?" "Yes, to all of Europe."
ask "Can I return a mug?" "Within 30 days, if it is whole."
[ "$right" -ge 4 ] || fail "of five questions that it was taught, one of them held out, the model answers $right"

# What stands before the table: names of elsewhere are answered with those of here, or with why there is none.
for pair in base_model:model datasets:data micro_batch_size:batch_size sequence_len:max_length cutoff_len:max_length \
  val_set_size:validation_split num_epochs:num_train_epochs lr_scheduler_type:lr_scheduler sample_packing:packing \
  evals_per_epoch:eval_strategy cosine_min_lr_ratio:min_lr; do
  said=$(user superoffload train --config run.yaml "--${pair%%:*}" 1 2>&1) && fail "--${pair%%:*} is taken"
  echo "$said" | grep -q "here it is --${pair##*:}\$" || fail "--${pair%%:*}: $said"
done
for name in peft_config adapter finetuning_type template roles_to_train report_to wandb_project \
  assistant_only_loss unfrozen_parameters; do
  echo "$name: 1" | cat run.yaml - >other.yaml
  said=$(user superoffload train --config other.yaml 2>&1) && fail "$name is taken"
  case $said in *"there is no option $name: "*"; remove it") ;; *) fail "$name: $said" ;; esac
done
