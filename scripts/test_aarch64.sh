#!/bin/sh
# The program for 64-bit Arm on any x86-64 machine: cross-compiled, and run by qemu-user as NEON and as SVE with vectors of
# several lengths. Installs the cross compiler and qemu where they are missing; the libraries of that architecture are
# unpacked into .deps/aarch64 and never installed. Where it cannot run it says why, also in the file NOT_RUN if that is
# set, and succeeds.
# usage: [NOT_RUN=FILE] test_aarch64.sh [bits|sample|all|cuda] [BUILD = build-aarch64, build-aarch64-all, build-aarch64-cuda]
#   bits    the tests of AdamW and of matrix products, compiled quickly
#   sample  those, and the program with a training run (the default)
#   all     the program as it is released, and the tests of every room; slow ones are sampled, and it says which
#   cuda    the program with the CUDA backend, compiled and linked for servers with NVIDIA GPUs (sbsa); nothing is run
set -eu
cd "$(dirname "$0")/.."
mode=${1:-sample}
case $mode in
  bits | sample) build=${2:-build-aarch64} ;;
  all | cuda) build=${2:-build-aarch64-$mode} ;;
  *) sed -n 's/^# usage: /usage: /p' "$0" >&2 && exit 2 ;;
esac
packages=$PWD/.deps/aarch64
jobs=$(nproc)

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

# The libraries of cmake/dependencies.cmake, without oneDNN, which 64-bit Arm does not use, and without MPI.
libraries="libhwy-dev libhwloc-dev libfmt-dev nlohmann-json3-dev libsimdjson-dev libcli11-dev libpcre2-dev libutf8proc-dev
libxxhash-dev libyaml-dev libmicrohttpd-dev libgtest-dev"
# A private package database of the other architecture, so that this machine's stays as it is.
fetch_packages() {
  mkdir -p "$packages/apt/lists/partial" "$packages/apt/cache/archives/partial"
  : >"$packages/apt/status"
  # shellcheck source=/dev/null
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
  # shellcheck disable=SC2086  # a list of words
  apt-get "$@" install -y -q --download-only --no-install-recommends $libraries || return 1
  for archive in "$packages"/apt/cache/archives/*.deb; do
    case ${archive##*/} in
      libc6* | libc-* | libcrypt* | libstdc++* | libgcc-s1* | gcc-* | linux-libc-dev*) ;; # the cross compiler has its own
      *perl* | dpkg_* | tar_* | debianutils_* | auto* | m4_*) ;; # programs
      *) dpkg-deb -x "$archive" "$packages" || return 1 ;;
    esac
  done
  rm -r "$packages/apt"
  echo "$libraries" >"$packages/complete"
}
if [ "$(cat "$packages/complete" 2>/dev/null)" != "$libraries" ]; then
  echo "== 64-bit Arm: fetching libraries"
  rm -rf "$packages"
  mkdir -p "$packages"
  fetch_packages >"$packages/fetch.log" 2>&1 ||
    not_run "the libraries could not be fetched: $(tail -n 1 "$packages/fetch.log")"
fi

# configure CMAKE_ARGUMENTS...; MPI would be that of this machine.
configure() {
  cmake -S . -B "$build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64-linux-gnu.cmake" \
    -DSO_AARCH64_PACKAGES="$packages" -DSO_MPI=OFF -DSO_PYTHON=OFF -DSO_UNITY=ON "$@" >/dev/null
}
# Runs the rest of the line for 64-bit Arm, on a processor of qemu's.
on() {
  processor=$1
  shift
  SO_EMULATOR_OPTIONS="-cpu $processor" qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu "$processor" "$@"
}
# tests_on CPU LANES TARGET PROGRAM...: a test program on a processor whose best instruction set is Highway's TARGET with
# so many fp32 lanes. The tests then go through all sets that the processor has.
tests_on() {
  processor=$1 lanes=$2 target=$3
  shift 3
  echo "-- $target, $((32 * lanes)) bits: ${1##*/}"
  SO_EXPECT_TARGET=$target SO_EXPECT_LANES=$lanes on "$processor" "$@" --gtest_brief=1
}

# Trains a small model for three steps on two processors; each step's loss is that of this machine's program, if it has
# been built, but for the rounding of sums whose order follows from the vectors' length.
train_sample() {
  folder=$(mktemp -d)
  losses() { sed -n 's/.*"loss":\([-0-9.e]*\).*/\1/p' "$1/metrics.jsonl"; }
  # shellcheck disable=SC2086  # options, without spaces in them
  for processor in max,sve128=on max,sve256=on; do
    echo "-- $processor: superoffload train"
    on "$processor" "$build/bin/superoffload" train --output_dir "$folder/$processor" $training
    losses "$folder/$processor" >"$folder/$processor.losses"
  done
  if [ -x build/bin/superoffload ]; then
    # shellcheck disable=SC2086
    build/bin/superoffload train --output_dir "$folder/here" $training
    losses "$folder/here" >"$folder/here.losses"
    for processor in max,sve128=on max,sve256=on; do
      paste "$folder/here.losses" "$folder/$processor.losses" | awk -v steps=3 '
        { gap = $1 - $2; if (gap < 0) gap = -gap; if (NF != 2 || gap > 1e-5 * $1) exit 1 } END { if (NR != steps) exit 1 }' || {
        paste "$folder/here.losses" "$folder/$processor.losses"
        echo "64-bit Arm: losses here and on $processor differ" >&2
        exit 1
      }
    done
  fi
  rm -rf "$folder"
}
model=tests/fixtures/models/qwen3-tied
training="--model $model/model --data $model/data.jsonl --device cpu --dtype fp32 --max_steps 3 --cpu_threads 2 --quiet"

# Rooms whose test programs run whole, and those of which a part is run, since emulation takes minutes: every tenth test,
# and of whole commands every fortieth.
whole_rooms="base device ranks io options doctor"
sampled_rooms="optim ops data offload model checkpoint plan train commands"
run_all() {
  configure -DSO_CUDA=OFF
  targets=superoffload
  for room in $whole_rooms $sampled_rooms; do targets="$targets test_$room"; done
  # shellcheck disable=SC2086  # a list of words
  cmake --build "$build" -j "$jobs" --target $targets
  echo "-- built in $(($(date +%s) - started)) s"
  failed=""
  for processor in max,sve128=on:4:SVE2_128 max,sve256=on:8:SVE_256; do
    rest=${processor#*:} cpu=${processor%%:*}
    for room in $whole_rooms; do
      tests_on "$cpu" "${rest%%:*}" "${rest#*:}" "$build/bin/test_$room" --gtest_filter="-$not_emulated" ||
        failed="$failed $room ($cpu)"
    done
    for room in $sampled_rooms; do
      parts=10
      [ "$room" != commands ] || parts=40
      echo "-- one of $parts tests:"
      GTEST_TOTAL_SHARDS=$parts GTEST_SHARD_INDEX=3 tests_on "$cpu" "${rest%%:*}" "${rest#*:}" "$build/bin/test_$room" \
        --gtest_filter="-$not_emulated" || failed="$failed $room ($cpu)"
    done
  done
  train_sample
  [ -z "$failed" ] || {
    echo "64-bit Arm: tests failed:$failed" >&2
    exit 1
  }
}
# Tests of what the emulator does in its own way: faults of mappings, how a program that cannot be started is reported,
# limits on threads, pages of its address space.
not_emulated='MappingGuardDeathTest.*:ChildProcess.NamesAProgramThatIsMissing:ThreadPool.AThreadThatCannotBeMadeIsAnError'
not_emulated="$not_emulated:HostPages.AreZeroAndHugeWhereLarge:HostMemory.TheAddressSpaceLimitCounts"

# run_bits [TARGET]: builds that target too.
run_bits() {
  configure -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O1 -DSO_OPTIMIZE_COLD=OFF -DSO_CUDA=OFF
  # shellcheck disable=SC2086  # an optional word
  cmake --build "$build" -j "$jobs" --target test_aarch64 ${1:-}
  echo "-- built in $(($(date +%s) - started)) s"
  # qemu emulates longer vectors element by element: there the sample is bits that are compared with those of x86-64.
  bits='Target.*:AdamWChecksum.*:SimdSgemm.HasTheBits*'
  program=$build/bin/test_aarch64
  beside=$(mktemp)
  {
    # The tests of bits go through all instruction sets of a processor, and every one has NEON. They are cut in two by
    # the moments' type.
    tests_on cortex-a72 4 NEON "$program" --gtest_filter="-AdamWMomentBits/*"
    tests_on max,sve128=on 4 SVE2_128 "$program" --gtest_filter="AdamWMomentBits/1.*"
    tests_on max,sve256=on 8 SVE_256 "$program" --gtest_filter="$bits"
    tests_on max,sve512=on 16 SVE2 "$program" --gtest_filter="$bits"
  } >"$beside" 2>&1 &
  status=0
  tests_on max,sve128=on 4 SVE2_128 "$program" --gtest_filter="$bits:AdamW*-AdamWMomentBits/1.*" || status=$?
  wait $! || status=$?
  cat "$beside"
  rm -f "$beside"
  return "$status"
}
run_sample() {
  run_bits superoffload
  train_sample
}

# The libraries that the CUDA backend is linked with, for servers with 64-bit Arm processors (sbsa), from NVIDIA's packages
# in the Python package index. Headers are the same for all processors and come from this machine's toolkit.
fetch_cuda() {
  cuda_version=$("$1" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
  wanted="cuda-runtime $cuda_version cudnn 9.19"
  [ "$(cat "$sbsa/complete" 2>/dev/null)" != "$wanted" ] || return 0
  echo "== 64-bit Arm: fetching CUDA's libraries"
  rm -rf "$sbsa"
  mkdir -p "$sbsa/wheels"
  python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --platform manylinux2014_aarch64 \
    --platform manylinux_2_27_aarch64 -d "$sbsa/wheels" "nvidia-cuda-runtime==$cuda_version.*" \
    "nvidia-cudnn-cu${cuda_version%%.*}==9.19.*" </dev/null || return 1
  python3 - "$sbsa" <<'PYTHON' || return 1
import glob, sys, zipfile
for path in glob.glob(sys.argv[1] + "/wheels/*.whl"):
    with zipfile.ZipFile(path) as wheel:
        for name in wheel.namelist():
            base = name.rsplit("/", 1)[-1]
            if base in ("libcudart_static.a", "libcudadevrt.a", "libcudnn.so.9"):
                with open(sys.argv[1] + "/" + base, "wb") as file:
                    file.write(wheel.read(name))
PYTHON
  rm -r "$sbsa/wheels"
  echo "$wanted" >"$sbsa/complete"
}
sbsa=$PWD/.deps/sbsa

run_cuda() {
  nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
  [ -x "$nvcc" ] || not_run "there is no CUDA toolkit (nvcc)"
  toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
  fetch_cuda "$nvcc" || not_run "CUDA's libraries for 64-bit Arm could not be fetched"
  cudnn=$(find "$toolkit/include" /usr/include /usr/local/include -name cudnn.h -printf '%h\n' 2>/dev/null | head -n 1)
  cupti=$(find -H "$toolkit/include" "$toolkit/extras/CUPTI/include" -name cupti.h -printf '%h\n' 2>/dev/null | head -n 1)
  # nvcc would look for the toolkit of 64-bit Arm in its own folder. Names are unique in a room of a build without CUDA
  # alone, so each source is compiled by itself.
  configure -DSO_UNITY=OFF -DSO_TESTS=OFF -DSO_CUDA=ON "-DSO_CUDA_ARCHITECTURES=90-real;100-real" -DCMAKE_CUDA_COMPILER="$nvcc" \
    -DCMAKE_CUDA_HOST_COMPILER=/usr/bin/aarch64-linux-gnu-g++ \
    "-DCMAKE_CUDA_FLAGS=-isystem $toolkit/include -isystem $toolkit/include/cccl -L$sbsa" \
    -DSO_CUBLASLT_INCLUDE="$toolkit/include" -DSO_CUBLASLT_LIBRARY=libcublasLt.so -DSO_CUPTI_INCLUDE="$cupti" \
    -DSO_CUDART_LIBRARY="$sbsa/libcudart_static.a" -DSO_CUDNN_INCLUDE="$cudnn" \
    -DSO_CUDNN_LIBRARY="$sbsa/libcudnn.so.9" -DSO_CUDNN_FRONTEND_INCLUDE="$PWD/.deps/cudnn-frontend/include" \
    -DSO_CUTLASS_INCLUDE="$PWD/.deps/cutlass/include"
  cmake --build "$build" -j "$jobs" --target superoffload
  # It starts, with the backend in it, and finds no GPU.
  on max,sve128=on "$build/bin/superoffload" --version
  aarch64-linux-gnu-readelf -d "$build/bin/superoffload" | grep -q 'NEEDED.*libcudnn.so.9' || {
    echo "64-bit Arm: the program does not need cuDNN, so it has no CUDA backend" >&2
    exit 1
  }
}

echo "== $build"
started=$(date +%s)
"run_$mode"
echo "== $build: $(($(date +%s) - started)) s"
