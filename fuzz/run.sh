#!/bin/sh
# Builds the libFuzzer targets with clang, the address and the undefined-behaviour sanitizer, and runs them one after
# another, each from its corpus; what they find is kept in BUILD/found. Ends with the first failure.
# usage: fuzz/run.sh [SECONDS a target = 60] [TARGET...]
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
[ $# -eq 0 ] || shift
build=${BUILD:-build-fuzz}
cmake -S . -B "$build" -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DSO_FUZZ=ON -DSO_TESTS=OFF \
  -DSO_CUDA=OFF -DSO_SANITIZE=address,undefined >/dev/null
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
for target in $targets; do
  echo "== fuzz_$target, $seconds s"
  mkdir -p "$build/corpus/$target"
  "$build/bin/fuzz_$target" -max_total_time="$seconds" -rss_limit_mb=4096 -timeout=10 -print_final_stats=1 \
    -artifact_prefix="$build/found/$target-" "$build/corpus/$target" "fuzz/corpus/$target" 2>&1 |
    tail -n 12 >"$build/found/$target.log" || true
  cat "$build/found/$target.log"
  if ls "$build/found/$target-"* >/dev/null 2>&1; then
    echo "fuzz_$target failed: see $build/found" >&2
    exit 1
  fi
done
