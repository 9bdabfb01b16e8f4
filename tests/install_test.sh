#!/bin/sh
# Installs a build into a folder, moves the folder, and plans and trains with the program there; the program, documents and
# recipes must need nothing of the build tree or of the prefix they were installed to.
# usage: install_test.sh BUILD_DIR SOURCE_DIR
set -eu
build=$1 source=$2
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
cmake --install "$build" --prefix "$temporary/first" >/dev/null
mv "$temporary/first" "$temporary/second"
cd "$temporary"
program=second/bin/superoffload
model=$source/tests/fixtures/models/qwen3-tied/model
data=$source/tests/fixtures/models/qwen3-tied/data.jsonl

fail() { echo "install_test: $1" >&2; exit 1; }
for file in README.md LICENSE CONTRIBUTING.md docs/command-line.md docs/performance.md; do
  [ -s "second/share/doc/superoffload/$file" ] || fail "share/doc/superoffload/$file is missing"
done
for file in bash-completion/completions/superoffload zsh/site-functions/_superoffload man/man1/superoffload.1; do
  grep -q gradient_accumulation_steps "second/share/$file" || fail "share/$file is missing or knows no options"
done
$program plan --model qwen3-4b --hardware h200 --json >plan.json || fail "plan failed"
$program train --model "$model" --data "$data" --output_dir out --max_steps 2 --device cpu --cache_dir cache --quiet ||
  fail "train failed"
[ -s out/model.safetensors ] || fail "train wrote no model"
# The recipe finds the program that was installed with it.
env -u SUPEROFFLOAD MODEL_DIR="$model" DATA="$data" OUTPUT_DIR=recipe MAX_LENGTH=48 \
  second/share/superoffload/recipes/finetune_qwen3-14b_1gpu.sh superoffload --dry_run --device cpu --cache_dir cache \
  --quiet || fail "the recipe failed"
