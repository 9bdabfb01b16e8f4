#!/bin/sh
# Prints a cmake argument that compiles the CUDA backend for the GPUs of this machine alone, which takes a third of the
# time of the default; nothing if there is no GPU to ask.
# usage: cuda_architectures.sh [IF_NONE]     (IF_NONE: the architecture to name where there is no GPU, e.g. 90-real)
set -eu
capabilities=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -E '^[0-9]+\.[0-9]+$' | sort -u) || true
list=""
for capability in $capabilities; do
  list="$list${list:+;}$(printf %s "$capability" | tr -d .)-real"
done
list=${list:-${1:-}}
[ -z "$list" ] || printf '%s\n' "-DSO_CUDA_ARCHITECTURES=$list"
