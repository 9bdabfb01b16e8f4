#!/bin/sh
# Runs the test of ranks that are processes. Exit code 77: skipped, since there is no mpirun.
# usage: run.sh PROGRAM RANKS KIND [LINES REGEX]   with LINES: so many lines of the output must match REGEX
set -eu
program=$1 ranks=$2 kind=$3 lines=${4:-} regex=${5:-}
if ! command -v mpirun >/dev/null 2>&1; then
  echo "skipped: there is no mpirun on this machine (Debian: openmpi-bin)"
  exit 77
fi
set -- mpirun --oversubscribe --allow-run-as-root --bind-to none -n "$ranks" "$program" "$kind"
[ -n "$lines" ] || exec "$@"
output=$("$@" 2>&1) || true
found=$(printf '%s\n' "$output" | grep -cE "$regex") || true
if [ "$found" != "$lines" ]; then
  printf '%s\n' "$output"
  echo "$found lines match '$regex', not $lines" >&2
  exit 1
fi
