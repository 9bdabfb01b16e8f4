#!/bin/sh
# Installs what is missing, builds, and runs all CPU tests: once as released, once with the address and undefined-
# behaviour sanitizers, and where threads meet also with the thread sanitizer; AdamW also for 64-bit Arm, emulated.
# About 20 minutes on 2 cores, half an hour where there is a CUDA toolkit. On a machine with an NVIDIA GPU and a build
# with the CUDA backend, then the same tests on the GPU.
set -eu
cd "$(dirname "$0")"
jobs=$(nproc)
scripts/install_dependencies.sh tests

# run DIRECTORY TARGETS CTEST_REGEX CMAKE_ARGUMENTS...
run() {
  directory=$1 targets=$2 tests=$3
  shift 3
  echo "== $directory"
  cmake -S . -B "$directory" -G Ninja -DSO_TESTS=ON "$@" >/dev/null
  # shellcheck disable=SC2086  # a list of words
  cmake --build "$directory" -j "$jobs" --target $targets
  ctest --test-dir "$directory" -j "$jobs" --output-on-failure --no-tests=error -LE gpu -R "$tests"
}

# Where there is no GPU the CUDA backend is only compiled, so one architecture does.
run build all . "$(scripts/cuda_architectures.sh 90-real)"
run build-asan all . -DSO_SANITIZE=address,undefined -DSO_CUDA=OFF
# oneDNN's OpenMP runtime is not instrumented; our code calls it one thread at a time, so it stays out of the picture.
run build-tsan "superoffload test_base test_device test_ranks test_optim test_offload test_train test_commands" \
  '^(base|device|ranks|optim|offload)\.|Interrupt|Resume' -DSO_SANITIZE=thread -DSO_CUDA=OFF

scripts/test_aarch64.sh

if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "== GPU tests: not run, no NVIDIA GPU here"
elif ! { grep -q '^SO_CUDNN_FRONTEND_INCLUDE:PATH=/' build/CMakeCache.txt &&
  grep -q '^SO_CUTLASS_INCLUDE:PATH=/' build/CMakeCache.txt; }; then
  echo "== GPU tests: not run, the build has no CUDA backend (cmake says why)"
else
  echo "== GPU tests"
  ctest --test-dir build --output-on-failure --no-tests=error -L gpu
fi
