#!/bin/sh
# Fine-tunes Llama-3.3-70B; --help says how.
set -eu
# shellcheck source=recipes/common.sh
. "$(dirname -- "$0")/common.sh"
finetune llama-70b meta-llama/Llama-3.3-70B-Instruct 4 "$@"
