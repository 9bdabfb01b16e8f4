#!/bin/sh
# Tests of the Python package, with the program and the extension of a build.
# usage: python_test.sh BUILD_DIR SOURCE_DIR package|optimizer
#   package: makes a wheel, installs it into a bare environment, and runs the tests there that need nothing else
#   optimizer: those that need PyTorch, by the python3 of $SO_TORCH_PYTHON, of .deps/torch (which
#     scripts/install_dependencies.sh torch makes), of .deps/python or of PATH
set -eu
build=$1 source=$2 part=$3
packer=$source/.deps/python/bin/python3
skip() {
  echo "python_test: skipped, $1"
  exit 77
}
set -- "$build"/python/superoffload/_engine*.so
[ -e "$1" ] || skip "the build has no extension (SO_PYTHON; scripts/install_dependencies.sh tests)"
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
export CUDA_VISIBLE_DEVICES="" SO_SOURCE_DIR="$source"

if [ "$part" = optimizer ]; then
  mkdir "$temporary/superoffload"
  cp "$source"/python/superoffload/*.py "$1" "$temporary/superoffload"
  cd "$temporary"
  # With models as small as these, PyTorch's threads wait for each other most of the time, busily: on 2 cores the tests
  # take three times the CPU time that they take with one. Python keeps the modules that it compiles, which is half of
  # the start of each process.
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" PYTHONPATH="$temporary"
  unset PYTHONDONTWRITEBYTECODE
  for python in "${SO_TORCH_PYTHON:-}" "$source/.deps/torch/bin/python3" "$packer" python3; do
    [ -n "$python" ] || continue
    "$python" -c 'import torch, superoffload._engine' 2>/dev/null || continue
    "$python" -m unittest discover --start-directory "$source/tests/python" --pattern "*optimizer.py"
    exit
  done
  skip "no python3 that the extension fits has PyTorch (install_dependencies.sh torch; SO_TORCH_PYTHON names one)"
fi

"$packer" -c 'import scikit_build_core' 2>/dev/null ||
  skip "scikit-build-core is not installed (scripts/install_dependencies.sh tests)"
"$packer" -m pip wheel "$source" --quiet --disable-pip-version-check --no-deps --no-index --no-build-isolation \
  --wheel-dir "$temporary" --config-settings build-dir="$temporary/build" \
  --config-settings cmake.define.SO_BUILT="$build"
"$packer" -m venv "$temporary/bare"
bare=$temporary/bare/bin/python3
# Without jinja2, which no test here needs: a test fetches nothing.
"$bare" -m pip install --quiet --disable-pip-version-check --no-deps --no-index "$temporary"/superoffload-*.whl
cd "$temporary"
"$bare" -B -m unittest discover --start-directory "$source/tests/python" --pattern "test_[dpt]*.py"
