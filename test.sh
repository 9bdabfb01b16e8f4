#!/bin/sh
# Installs what is missing, builds, and runs all CPU tests: once as released; once compiled by clang, where warnings are
# errors, with the address and undefined-behaviour sanitizers, the fuzz targets on their corpora and bench/; and where
# threads meet also with the thread sanitizer. The program is compiled for 64-bit Arm too, and a sample of its tests
# emulated. On a machine with an NVIDIA GPU and a build with the CUDA backend the same tests then run on the GPU. At the
# end it lists what was skipped, and why.
# From a clean clone, with a CUDA toolkit, it takes 22 minutes on 2 cores of an AMD EPYC, and up to 57 on slower ones.
# PyTorch, for the tests of its optimizer, takes 5.7 GB of disk (.deps/torch).
set -eu
cd "$(dirname "$0")"
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
if [ -z "${SO_TORCH_PYTHON:-}" ]; then
  mkdir -p .deps
  setsid scripts/install_dependencies.sh torch >"$torch_log" 2>&1 &
  torch=$!
fi
await_torch() {
  [ -n "$torch" ] || return 0
  wait "$torch" || not_run "Tests of the PyTorch optimizer: not run, $(tail -n 1 "$torch_log")"
  torch=""
}

# run DIRECTORY TARGETS CTEST_REGEX CMAKE_ARGUMENTS...
run() {
  directory=$1 targets=$2 tests=$3
  shift 3
  echo "== $directory"
  started=$(date +%s)
  cmake -S . -B "$directory" -G Ninja -DSO_TESTS=ON "$@" >/dev/null
  # shellcheck disable=SC2086  # a list of words
  cmake --build "$directory" -j "$jobs" --target $targets
  await_torch
  built=$(date +%s)
  rm -f "$directory/tests.xml"
  builds="$builds $directory"
  # One more than there are cores: some tests wait for a process most of their time.
  ctest --test-dir "$directory" -j "$((jobs + 1))" --output-on-failure --no-tests=error --output-junit tests.xml -LE gpu -R "$tests"
  echo "== $directory: built in $((built - started)) s, tested in $(($(date +%s) - built)) s"
}

# Where there is no GPU the CUDA backend is only compiled, so one architecture does.
run build all . "$(scripts/cuda_architectures.sh 90-real)"
# The address sanitizer keeps a stack of each allocation, and freed memory for a while: a fifth of the time of some tests
# went into deep stacks, and a tenth into ever new pages.
export ASAN_OPTIONS="malloc_context_size=8:quarantine_size_mb=16${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
run build-clang-asan all . -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_COMPILE_WARNING_AS_ERROR=ON \
  -DSO_SANITIZE=address,undefined -DSO_FUZZ=ON -DSO_BENCH=ON -DSO_CUDA=OFF
# oneDNN's OpenMP runtime is not instrumented; our code calls it one thread at a time, so it stays out of the picture.
run build-tsan "superoffload test_base test_device test_ranks test_optim test_collectives test_offload test_frameworks
  test_train test_commands" \
  '^(base|device|ranks|optim|collectives|offload|frameworks)\.|Interrupt|Resume' -DSO_SANITIZE=thread -DSO_CUDA=OFF

scripts/test_aarch64.sh

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
