#!/bin/sh
# Fine-tunes GPT-OSS-20B; --help says how.
set -eu
# shellcheck source=recipes/common.sh
. "$(dirname -- "$0")/common.sh"
finetune gpt-oss-20b openai/gpt-oss-20b 1 "$@"
