#!/bin/sh
# AdamW's tests for 64-bit Arm on any machine: cross-compiled, and run by qemu-user as NEON and as SVE with vectors of 128,
# 256 and 512 bits. Installs the cross compiler and qemu where they are missing; the development packages of that
# architecture are unpacked into BUILD/packages and never installed. Where it cannot run it says why, also in the file
# NOT_RUN if that is set, and succeeds.
# usage: [NOT_RUN=FILE] test_aarch64.sh [BUILD = build-aarch64]
set -eu
cd "$(dirname "$0")/.."
build=${1:-build-aarch64}
packages=$PWD/$build/packages

not_run() {
  echo "== 64-bit Arm: not run, $1"
  [ -z "${NOT_RUN:-}" ] || echo "64-bit Arm: not run, $1" >>"$NOT_RUN"
  exit 0
}
[ "$(uname -m)" = x86_64 ] || not_run "this is not an x86-64 machine"
command -v apt-get >/dev/null 2>&1 || not_run "this is not Debian or Ubuntu, whose cross compiler it uses"

needed="g++-aarch64-linux-gnu qemu-user"
missing=""
for package in $needed; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
done
if [ -n "$missing" ]; then
  as_root=""
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null 2>&1 || not_run "root or sudo is needed for: apt-get install$missing"
    as_root=sudo
  fi
  echo "== 64-bit Arm: installing$missing"
  export DEBIAN_FRONTEND=noninteractive
  # shellcheck disable=SC2086  # a list of words, an optional word
  { $as_root apt-get update -q && $as_root apt-get install -y -q --no-install-recommends $missing; } >/dev/null ||
    not_run "apt-get could not install$missing"
fi

# A private package database of the other architecture, so that this machine's stays as it is.
fetch_packages() {
  mkdir -p "$packages/apt/lists/partial" "$packages/apt/cache/archives/partial"
  : >"$packages/apt/status"
  . /etc/os-release
  if [ "${ID:-}" = ubuntu ]; then # whose other architectures are on a server of their own
    for suite in "$VERSION_CODENAME" "$VERSION_CODENAME-updates"; do
      echo "deb http://ports.ubuntu.com/ubuntu-ports $suite main universe"
    done >"$packages/apt/sources.list"
    set -- -o "Dir::Etc::SourceList=$packages/apt/sources.list" -o Dir::Etc::SourceParts=-
  fi
  set -- -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o "Dir::State::Lists=$packages/apt/lists" \
    -o "Dir::State::Status=$packages/apt/status" -o "Dir::Cache=$packages/apt/cache" -o Debug::NoLocking=1 \
    -o Acquire::Languages=none -o "APT::Sandbox::User=$(id -un)" "$@"
  apt-get "$@" update -q || return 1
  apt-get "$@" install -y -q --download-only --no-install-recommends libhwy-dev libhwloc-dev libfmt-dev libgtest-dev \
    nlohmann-json3-dev || return 1
  for name in libhwy libhwloc libfmt libgtest-dev nlohmann-json3-dev libudev libcap2; do
    for archive in "$packages"/apt/cache/archives/"$name"*.deb; do
      [ ! -e "$archive" ] || dpkg-deb -x "$archive" "$packages" || return 1
    done
  done
  rm -r "$packages/apt"
  : >"$packages/complete"
}
if [ ! -e "$packages/complete" ]; then
  echo "== 64-bit Arm: fetching libraries"
  mkdir -p "$packages"
  fetch_packages >"$packages/fetch.log" 2>&1 ||
    not_run "the libraries could not be fetched: $(tail -n 1 "$packages/fetch.log")"
fi

echo "== $build"
cmake -S tests/aarch64 -B "$build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64-linux-gnu.cmake" \
  -DSO_AARCH64_PACKAGES="$packages" >/dev/null
cmake --build "$build" -j "$(nproc)"
ctest --test-dir "$build" -j "$(nproc)" --output-on-failure --no-tests=error
