#!/bin/sh
# Fails if a source is not as clang-format has it. Versions differ in what they write, so that only the one named here
# judges; where it is not installed the check is skipped (exit code 77).
# usage: check_format.sh SRC_DIR
set -eu
cd "$1/.."
wanted=14
found=none
for program in clang-format-$wanted clang-format; do
  command -v "$program" >/dev/null 2>&1 || continue
  found=$($program --version | sed -n 's/.*version \([0-9][0-9]*\)\..*/\1/p')
  [ "$found" != $wanted ] || break
done
if [ "$found" != $wanted ]; then
  echo "check_format: skipped, clang-format $wanted is needed (apt-get install clang-format-$wanted), found: $found"
  exit 77
fi
if ! find src tests bench fuzz \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) \
  -exec "$program" --dry-run -Werror {} +; then
  echo "check_format: run $program -i on these files" >&2
  exit 1
fi
