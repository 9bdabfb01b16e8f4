#!/bin/bash
# What bash and zsh offer behind the beginning of a line, and whether the manual page is one.
# usage: completion_test.sh PROGRAM
set -eu
program=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/here/a folder"
touch "$folder/here/file"
failures=0
fail() { echo "completion_test: $1" >&2; failures=$((failures + 1)); }

# ---- bash: the words of a line, the last of which is completed, and what is offered ("..." at the end: among others).
"$program" completion bash >"$folder/bash"
# shellcheck disable=SC1091
. "$folder/bash"
cd "$folder/here"
offers() {
  local expected=$1
  shift
  COMP_WORDS=(superoffload "$@") COMP_CWORD=$# COMPREPLY=()
  _superoffload || true  # compopt fails outside of a completion
  local found="${COMPREPLY[*]}"
  if [ "${expected%...}" != "$expected" ]; then found="${found:0:$((${#expected} - 3))}..."; fi
  [ "$found" = "$expected" ] || fail "bash offers '${COMPREPLY[*]}' behind '$*', expected '$expected'"
}
offers "train" tr
offers "train ..." ""
offers "step ops load" bench ""
offers "--no_optimizer" bench step --no
offers "--model --mode --move_gradients" train --mo
offers "superoffload zerooffload" train --mode ""
offers "superoffload zerooffload" train --mode =
offers "superoffload" train --mode = su
offers "true false" train --packing ""
offers "--lr --lr_scheduler --lr_multiplier" train --packing --lr
offers "" train --lr ""
offers "--help --model ..." train ""
offers "a folder" train --model "a "
offers "a folder" verify ""
offers "file" train --data "fi"
offers "" train --pin
offers "bench" help be
offers "bash zsh man" completion ""
offers "rtx3090 rtx4090 rtx5090 rtxpro6000" plan --hardware rtx
offers "file" plan --hardware "fi"
offers "qwen3-0.6b qwen3-14b qwen3-30b-a3b qwen3-32b qwen3-4b qwen3-8b qwen3-next-80b-a3b qwen3.5-0.8b qwen3.5-27b qwen3.5-35b-a3b qwen3.5-4b qwen3.5-9b" plan --model qw
cd /

# ---- zsh: without its completion system, whose functions here show what they are given.
if command -v zsh >/dev/null; then
  "$program" completion zsh >"$folder/zsh"
  zsh -f -n "$folder/zsh" || fail "zsh cannot read its completion"
  zsh_gives() {
    local expected=$1
    shift
    # shellcheck disable=SC2016
    zsh -f -c 'compdef() { :; }
      _describe() { print -rl -- "${(P@)2}"; }
      _arguments() { print -rl -- "$@"; print "words $words, $CURRENT"; }
      . "$0"; words=("$@"); CURRENT=$#; _superoffload' "$folder/zsh" superoffload "$@" >"$folder/given" 2>&1
    grep -qxF -e "$expected" "$folder/given" || fail "zsh is not given '$expected' behind '$*' but: $(cat "$folder/given")"
  }
  zsh_gives "train:fine-tune all parameters of a model" ""
  zsh_gives "bench:step, ops, load" ""
  zsh_gives "step:time training steps of a model with random weights" bench ""
  zsh_gives "words train --mode su, 3" train --mode su
  zsh_gives "words bench step --no, 2" bench step --no
  zsh_gives "--dtype=[Number format of forward and backward; master weights are always fp32; auto\\: what the model's config.json says, else what its weights are stored in]:value:(auto bf16 fp32)" train ""
  zsh_gives "--packing=[Fill each row with several records up to max_length; attention stays within a record]::value:(true false)" train ""
  zsh_gives "--model=[Hugging Face model directory to start from\\: config.json, tokenizer, safetensors]:DIR:_files -/" train ""
  zsh_gives "1:dir:_files -/" verify ""
  "$program" completion zsh | grep -q -- '--hardware=.*:FILE|NAME:{compadd -- a100-40g .* rtxpro6000; _files}' ||
    fail "zsh is not given the names of machines"
else
  echo "skipped: zsh is not installed"
fi

# ---- the manual page
"$program" completion man >"$folder/superoffload.1"
for word in '\.SH NAME' '\.SS bench step' '\\fB\\-\\-lr\\fR X'; do
  grep -q "^$word" "$folder/superoffload.1" || fail "the manual page has no line '$word'"
done
if command -v mandoc >/dev/null; then
  # A date would make every build another one.
  if mandoc -T lint "$folder/superoffload.1" | grep -E ' (WARNING|ERROR|UNSUPP)' | grep -v 'missing date' >"$folder/lint"; then
    fail "mandoc: $(head -5 "$folder/lint")"
  fi
else
  echo "skipped: mandoc is not installed"
fi
[ "$failures" = 0 ]
