#!/bin/sh
# Where nvcc is found and something else of the CUDA backend is not, configuring fails and says what to do, rather than
# building a program without CUDA.
# usage: configure_test.sh SOURCE_DIR
set -eu
source=$1
command -v nvcc >/dev/null 2>&1 || [ -x /usr/local/cuda/bin/nvcc ] || { echo "skipped: no nvcc here" && exit 77; }
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
# An empty path counts as found to CMake's search, and as missing to cmake/cuda.cmake.
if cmake -S "$source" -B "$temporary/build" -DSO_CUDNN_INCLUDE= -DSO_TESTS=OFF -DSO_PYTHON=OFF >"$temporary/log" 2>&1; then
  echo "configured without cuDNN's header:"
  cat "$temporary/log"
  exit 1
fi
for words in "not found: CUDNN_INCLUDE" "libcudnn9-dev" "SO_CUDA=OFF"; do
  grep -q "$words" "$temporary/log" || { echo "no '$words' in:" && cat "$temporary/log" && exit 1; }
done
