#!/bin/sh
# Installs what is missing, builds, and runs all CPU tests: once as released, once with the address and undefined-
# behaviour sanitizers, and where threads meet also with the thread sanitizer. At most 20 minutes on 2 cores.
set -eu
cd "$(dirname "$0")"
jobs=$(nproc)
scripts/install_dependencies.sh tests

run() {  # build directory, CMake arguments, ctest arguments
  directory=$1
  shift
  echo "== $directory"
  cmake -S . -B "$directory" -G Ninja -DSO_TESTS=ON $cmake_arguments >/dev/null
  cmake --build "$directory" -j "$jobs"
  ctest --test-dir "$directory" -j "$jobs" --output-on-failure --no-tests=error "$@"
}

cmake_arguments="" run build
cmake_arguments="-DSO_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=RelWithDebInfo" run build-asan
# oneDNN's OpenMP runtime is not instrumented; our code calls it one thread at a time.
cmake_arguments="-DSO_SANITIZE=thread -DCMAKE_BUILD_TYPE=RelWithDebInfo" run build-tsan -R '^(base|device|offload|train|optim)\.'
