#!/bin/sh
# Installs what building and testing need from Debian's or Ubuntu's packages, and where there is a CUDA toolkit also the
# headers that the CUDA backend needs beside it; does nothing if all is there.
# usage: install_dependencies.sh [cpu|tests|torch]
#   cpu    nothing for the CUDA backend
#   tests  also what the tests need
#   torch  nothing but PyTorch and trainers, for the tests of the PyTorch optimizer, into .deps/torch; if it cannot, its
#          last line says why
set -eu
dependencies=$(cd "$(dirname "$0")/.." && pwd)/.deps

install_torch() {
  environment=$dependencies/torch
  # Those that the tests were last seen to pass with.
  wanted="torch==2.15.* transformers==5.24.* accelerate==1.15.* trl==1.16.*"
  # Another installation that is under way is awaited. The lock is pip's too.
  exec 9>"$dependencies/torch.lock"
  flock 9
  # A newer python3 does not find what an older one installed.
  complete="$wanted with $("$dependencies/python/bin/python3" --version 2>&1 || true)"
  [ "$(cat "$environment/complete" 2>/dev/null)" != "$complete" ] || return 0
  cannot() {
    rm -rf "$environment"
    echo "PyTorch is not installed: $1"
    exit 1
  }
  "$dependencies/python/bin/python3" -I -c 'import nanobind' 2>/dev/null ||
    cannot "without nanobind the extension that its tests need is not built (install_dependencies.sh tests)"
  rm -rf "$environment"
  # The package index has PyTorch for Linux with CUDA alone, all of whose libraries it is linked with. pip fetches
  # everything before it unpacks the first.
  room=$(df -Pk "$dependencies" | awk 'NR == 2 { print int($4 / 1048576) }')
  [ "$room" -ge 16 ] ||
    cannot "it needs 9 GiB of disk for a while, the builds of test.sh need 7, and $dependencies has $room GiB"
  "$dependencies/python/bin/python3" -I -m venv "$environment" || cannot "python3 -m venv failed"
  mkdir "$environment/tmp" # /tmp may be small
  # Of 20,000 modules the tests import a tenth, which python compiles when it first does.
  # shellcheck disable=SC2086  # a list of words
  TMPDIR=$environment/tmp "$environment/bin/python3" -I -m pip install -q --disable-pip-version-check --no-cache-dir \
    --no-compile --only-binary=:all: $wanted 2>"$environment/errors" </dev/null ||
    cannot "pip: $(grep . "$environment/errors" | tail -n 1)"
  rm -r "$environment/tmp"
  "$environment/bin/python3" -I -c 'import torch' || cannot "it cannot be imported"
  echo "$complete" >"$environment/complete"
}
if [ "${1:-}" = torch ]; then
  install_torch
  exit
fi

# package and what for
needed="
g++:the compiler
cmake:the build
ninja-build:the build
pkg-config:finding libraries
libdnnl-dev:oneDNN, matrix products on the CPU
libhwy-dev:Highway, SIMD with the instruction set chosen at run time
libhwloc-dev:hwloc, the machine's cores
libfmt-dev:text formatting
nlohmann-json3-dev:configuration files
libsimdjson-dev:data files and tokenizers
libcli11-dev:the command line
libpcre2-dev:tokenizers' regular expressions
libutf8proc-dev:Unicode normalisation
libxxhash-dev:XXH3, checksums of what is written
libyaml-dev:YAML, the options of a run in a file
python3-jinja2:Jinja2, chat templates
libmicrohttpd-dev:libmicrohttpd, the page of runs that go on
libopenmpi-dev:Open MPI, messages between ranks
openmpi-bin:mpirun, which starts ranks
"
if [ "${1:-}" = tests ]; then
  needed="$needed
libgtest-dev:GoogleTest, the tests
clang:the second compiler, and the sanitizers
lld:a faster linker, for builds with sanitizers
libbenchmark-dev:Google Benchmark, for bench/
clang-format-14:the check of the sources' format
shellcheck:the check of the scripts
zsh:the check of its completion
python3-dev:the headers that the extension of the Python package is compiled with
python3-venv:environments for what is no Debian package
mandoc:the check of the manual page
"
fi

# Installs those of a list of "package:what for" that are missing.
install() {
  missing=""
  reasons=""
  while IFS=: read -r package reason; do
    [ -n "$package" ] || continue
    if ! dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed'; then
      missing="$missing $package"
      reasons="$reasons  $package: $reason
"
    fi
  done <<EOF
$1
EOF
  [ -n "$missing" ] || return 0
  printf 'Installing Debian packages that are missing:\n%s' "$reasons"
  # shellcheck disable=SC2086  # a list of words
  get_packages $missing
}

# Installs packages in the newest version that there is.
get_packages() {
  if ! command -v apt-get >/dev/null 2>&1; then
    echo "install_dependencies: this is not Debian or Ubuntu; install by hand: $*" >&2
    exit 2
  fi
  if [ "$(id -u)" = 0 ]; then
    as_root=""
  elif command -v sudo >/dev/null 2>&1; then
    as_root=sudo
  else
    echo "install_dependencies: root or sudo is needed for: apt-get install $*" >&2
    exit 2
  fi
  export DEBIAN_FRONTEND=noninteractive
  $as_root apt-get update -q
  $as_root apt-get install -y -q --no-install-recommends "$@"
}
install "$needed"

# One that was installed long ago may have holes for which the program refuses it.
holes=$(cd "$(dirname "$0")/.." && pwd)/src/data/library_holes.py
if ! hole=$(/usr/bin/python3 -I "$holes" jinja2 2>&1); then
  echo "Installing python3-jinja2 anew: $hole"
  get_packages python3-jinja2
  /usr/bin/python3 -I "$holes" jinja2 || echo "install_dependencies: conversations cannot be trained on with this Jinja2" >&2
fi
# Ubuntu has browsers as snaps alone; where there is none, the browser's test of the report is skipped.
if [ "${1:-}" = tests ] && grep -q '^ID=debian' /etc/os-release 2>/dev/null; then
  install "chromium-headless-shell:a browser without a window, the test of the report's page"
fi
# Without them, the tests that need them are skipped. Module, package, and what for.
if [ "${1:-}" = tests ]; then
  environment=$dependencies/python
  while IFS=: read -r module package reason; do
    if ! "$environment/bin/python3" -I -c "import $module" 2>/dev/null; then
      echo "Installing $package into $environment: $reason"
      { python3 -I -m venv "$environment" &&
        "$environment/bin/python3" -I -m pip install -q --disable-pip-version-check "$package"; } </dev/null ||
        echo "install_dependencies: continuing without $package" >&2
    fi
  done <<EOF
pyarrow:pyarrow>=14.0.1:the tests of Parquet and Arrow files
scikit_build_core:scikit-build-core>=0.10:the tests of the Python package
nanobind:nanobind>=2.4:the extension of the Python package
EOF
fi
# The package of clang's runtimes bears the version that the distribution's clang has.
if [ "${1:-}" = tests ] && version=$(clang -dumpversion 2>/dev/null); then
  install "libclang-rt-${version%%.*}-dev:clang's sanitizers and libFuzzer"
fi

# The CUDA backend is optional: where something of it is missing, cmake says how to build without.
if [ "${1:-}" != cpu ] && { command -v nvcc >/dev/null 2>&1 || [ -x /usr/local/cuda/bin/nvcc ]; }; then
  for name in cudnn-frontend cutlass; do
    "$(dirname "$0")/fetch_headers.sh" "$name" || echo "install_dependencies: continuing without $name, which the CUDA backend needs" >&2
  done
  # NVIDIA's package, or that of the toolkit, serves as well.
  found=""
  for directory in /usr/include /usr/local/include /usr/local/cuda/include; do
    [ ! -f "$directory/nccl.h" ] || found=$directory
  done
  [ -n "$found" ] || "$(dirname "$0")/fetch_headers.sh" nccl ||
    echo "install_dependencies: continuing without NCCL: several GPUs cannot train together" >&2
fi
