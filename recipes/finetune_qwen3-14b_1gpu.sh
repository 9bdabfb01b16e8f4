#!/bin/sh
# Fine-tunes Qwen3-14B; --help says how.
set -eu
# shellcheck source=recipes/common.sh
. "$(dirname -- "$0")/common.sh"
finetune qwen3-14b Qwen/Qwen3-14B 1 "$@"
