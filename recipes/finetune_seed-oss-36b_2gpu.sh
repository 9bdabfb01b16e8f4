#!/bin/sh
# Fine-tunes Seed-OSS-36B; --help says how.
set -eu
# shellcheck source=recipes/common.sh
. "$(dirname -- "$0")/common.sh"
finetune seed-oss-36b ByteDance-Seed/Seed-OSS-36B-Instruct 2 "$@"
