#!/bin/sh
# Fine-tunes Llama-3.1-8B; --help says how.
set -eu
# shellcheck source=recipes/common.sh
. "$(dirname -- "$0")/common.sh"
finetune llama-8b meta-llama/Llama-3.1-8B 1 "$@"
