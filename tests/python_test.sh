#!/bin/sh
# Makes a wheel of the Python package with the program of a build, installs it into a bare environment, and runs
# tests/python there.
# usage: python_test.sh BUILD_DIR SOURCE_DIR
set -eu
build=$1 source=$2
packer=$source/.deps/python/bin/python3
if ! "$packer" -c 'import scikit_build_core' 2>/dev/null; then
  echo "python_test: skipped, scikit-build-core is not installed (scripts/install_dependencies.sh tests)"
  exit 77
fi
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
"$packer" -m pip wheel "$source" --quiet --disable-pip-version-check --no-deps --no-index --no-build-isolation \
  --wheel-dir "$temporary" --config-settings build-dir="$temporary/build" \
  --config-settings cmake.define.SO_BUILT="$build"
"$packer" -m venv "$temporary/bare"
bare=$temporary/bare/bin/python3
# Without jinja2, which no test here needs: a test fetches nothing.
"$bare" -m pip install --quiet --disable-pip-version-check --no-deps --no-index "$temporary"/superoffload-*.whl
cd "$temporary"
CUDA_VISIBLE_DEVICES="" SO_SOURCE_DIR=$source "$bare" -B -m unittest discover --start-directory "$source/tests/python"
