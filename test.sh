#!/bin/sh
# Installs what is missing, builds as released, and runs every test of that build; on a machine with an NVIDIA GPU, where
# the build has the CUDA backend, the same tests on the GPU too. At the end it lists what was skipped, and why.
# usage: test.sh [--all]
#   --all  also PyTorch for the tests of its optimizer, which takes 5.7 GB of disk (.deps/torch); all but sweeps compiled
#          by clang, where warnings are errors, with the address and undefined-behaviour sanitizers, the fuzz targets on
#          their corpora and bench/; where threads meet, the thread sanitizer; and what is written for 64-bit Arm,
#          with an emulator
# SO_TEST_MINUTES=N ends --all in about that time: of the last two, what would begin too late for it is listed as not run.
# From a clean clone with a CUDA toolkit, on two cores, it took 28 minutes, with --all 60; with --all on others 33 to 89.
set -eu
cd "$(dirname "$0")"
case "$#:${1:-}" in
  0:) all="" ;;
  1:--all) all=1 ;;
  *) sed -n '/^# usage/,/^#  *with an emu/s/^# //p' "$0" >&2 && exit 2 ;;
esac
jobs=$(nproc)
begin=$(date +%s)
scripts/install_dependencies.sh tests

# What does not run says so here, a line each; scripts/test_aarch64.sh too.
NOT_RUN=$(mktemp)
export NOT_RUN
not_run() {
  echo "== $1"
  echo "$1" >>"$NOT_RUN"
}
# late SHARE: whether more of SO_TEST_MINUTES has passed, in percent.
late() {
  [ -n "${SO_TEST_MINUTES:-}" ] && [ $(($(date +%s) - begin)) -gt $((SO_TEST_MINUTES * 60 * $1 / 100)) ]
}
builds=""
torch=""
torch_log=$(mktemp)
closing_list() {
  status=$?
  [ -z "$torch" ] || kill -- "-$torch" 2>/dev/null || true
  echo "== skipped"
  for directory in $builds; do
    [ ! -e "$directory/tests.xml" ] || scripts/skipped_tests.sh "$directory" "$directory/tests.xml"
  done
  cat "$NOT_RUN"
  rm -f "$NOT_RUN" "$torch_log"
  echo "== $([ "$status" = 0 ] && echo passed || echo FAILED), $(($(date +%s) - begin)) s"
}
trap closing_list EXIT
# dash runs no EXIT trap when a signal ends it.
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# PyTorch is fetched while the first build compiles, which takes longer where nothing is cached, and awaited before its
# tests. It has a process group of its own, so that all of it ends where this does.
if [ "$all" ] && [ -z "${SO_TORCH_PYTHON:-}" ]; then
  mkdir -p .deps
  setsid scripts/install_dependencies.sh torch >"$torch_log" 2>&1 &
  torch=$!
fi
await_torch() {
  [ -n "$torch" ] || return 0
  wait "$torch" || not_run "Tests of the PyTorch optimizer: not run, $(tail -n 1 "$torch_log")"
  torch=""
}

# run DIRECTORY CMAKE_ARGUMENTS...
run() {
  directory=$1
  shift
  echo "== $directory"
  started=$(date +%s)
  cmake -S . -B "$directory" -G Ninja -DSO_TESTS=ON "$@" >/dev/null
  cmake --build "$directory" -j "$jobs"
  await_torch
  built=$(date +%s)
  rm -f "$directory/tests.xml"
  builds="$builds $directory"
  # Two more than there are cores: some tests wait for a process, or for random delays, most of their time.
  ctest --test-dir "$directory" -j "$((jobs + 2))" --output-on-failure --no-tests=error --output-junit tests.xml -LE gpu
  echo "== $directory: built in $((built - started)) s, tested in $(($(date +%s) - built)) s"
}

# Where there is no GPU the CUDA backend is only compiled, so one architecture does.
run build "$(scripts/cuda_architectures.sh 90-real)"
if [ "$all" ]; then
  # The address sanitizer keeps a stack of each allocation, and freed memory for a while: a fifth of the time of some
  # tests went into deep stacks, and a tenth into ever new pages.
  export ASAN_OPTIONS="malloc_context_size=8:quarantine_size_mb=16${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
  run build-clang-asan -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_COMPILE_WARNING_AS_ERROR=ON \
    -DSO_SANITIZE=address,undefined -DSO_FUZZ=ON -DSO_BENCH=ON -DSO_CUDA=OFF
  # oneDNN's OpenMP runtime is not instrumented; our code calls it one thread at a time, so it stays out of the picture.
  if late 80; then
    not_run "Thread sanitizer: not run, it would have begun too late for $SO_TEST_MINUTES minutes"
  else
    run build-tsan -DSO_SANITIZE=thread -DSO_CUDA=OFF
  fi
  if late 92; then
    not_run "64-bit Arm: not run, it would have begun too late for $SO_TEST_MINUTES minutes"
  else
    scripts/test_aarch64.sh bits
  fi
fi

if ! nvidia-smi -L >/dev/null 2>&1; then
  not_run "GPU tests: not run, no NVIDIA GPU here"
elif ! { grep -q '^SO_CUDNN_FRONTEND_INCLUDE:PATH=/' build/CMakeCache.txt &&
  grep -q '^SO_CUTLASS_INCLUDE:PATH=/' build/CMakeCache.txt; }; then
  not_run "GPU tests: not run, the build has no CUDA backend (cmake says why)"
else
  echo "== GPU tests"
  mkdir -p build/gpu
  builds="$builds build/gpu"
  ctest --test-dir build --output-on-failure --no-tests=error --output-junit gpu/tests.xml -L gpu
fi
