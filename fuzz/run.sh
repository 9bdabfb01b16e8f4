#!/bin/sh
# Builds the libFuzzer targets with clang, the address and the undefined-behaviour sanitizer, and runs them, each from its
# corpus; what they find is kept in BUILD/found, with each target's log. Ends with the first failure.
# usage: [JOBS=1] [BUILD=build-fuzz] fuzz/run.sh [SECONDS a target = 60] [TARGET...]     JOBS: how many targets at once
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
[ $# -eq 0 ] || shift
build=${BUILD:-build-fuzz}
cmake -S . -B "$build" -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DSO_FUZZ=ON -DSO_TESTS=OFF \
  -DSO_CUDA=OFF -DSO_OPTIMIZE_COLD=ON -DSO_SANITIZE=address,undefined,fuzzer-no-link >/dev/null
targets=$*
if [ -z "$targets" ]; then
  for source in fuzz/*_fuzz.cpp; do
    name=${source#fuzz/}
    targets="$targets ${name%_fuzz.cpp}"
  done
fi
binaries=""
for target in $targets; do binaries="$binaries fuzz_$target"; done
# shellcheck disable=SC2086  # a list of words
cmake --build "$build" --target $binaries
mkdir -p "$build/found"
export build seconds
# xargs starts no more after a status of 255.
# shellcheck disable=SC2086,SC2016  # a list of words; the inner shell expands its own
printf '%s\n' $targets | xargs -n 1 -P "${JOBS:-1}" sh -c '
  log=$build/found/$1.log
  mkdir -p "$build/corpus/$1"
  if "$build/bin/fuzz_$1" -max_total_time="$seconds" -rss_limit_mb=4096 -timeout=10 -print_final_stats=1 \
    -artifact_prefix="$build/found/$1-" "$build/corpus/$1" "fuzz/corpus/$1" >"$log" 2>&1; then
    printf "== fuzz_%s, %s s\n%s\n" "$1" "$seconds" "$(tail -n 10 "$log")"
  else
    printf "== fuzz_%s failed: see %s\n%s\n" "$1" "$build/found" "$(tail -n 60 "$log")" >&2
    exit 255
  fi
' sh
