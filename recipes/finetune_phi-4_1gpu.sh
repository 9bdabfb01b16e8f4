#!/bin/sh
# Fine-tunes Phi-4 (14.7B); --help says how.
set -eu
# shellcheck source=recipes/common.sh
. "$(dirname -- "$0")/common.sh"
finetune phi-4 microsoft/phi-4 1 "$@"
