#!/bin/sh
# Fine-tunes Qwen3-30B-A3B; --help says how.
set -eu
# shellcheck source=recipes/common.sh
. "$(dirname -- "$0")/common.sh"
finetune qwen3-30b-a3b Qwen/Qwen3-30B-A3B 2 "$@"
