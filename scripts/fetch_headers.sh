#!/bin/sh
# usage: fetch_headers.sh cudnn-frontend|cutlass|nccl
# Fetches a library's headers, of NCCL the library too, from its package in the Python package index, into .deps/NAME: no
# distribution packages them, or an old version. Does nothing if they are there.
set -eu
name=${1:-}
case $name in
  cudnn-frontend) package=nvidia-cudnn-frontend version=1.18.0 inside='' header=cudnn_frontend.h ;;
  cutlass) package=nvidia-cutlass version=4.2.0.0 inside=cutlass_library/source/ header=cutlass/cutlass.h ;;
  nccl) # of the toolkit's major version
    nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
    cuda=$("$nvcc" --version | sed -n 's/.*release \([0-9]*\).*/\1/p')
    package=nvidia-nccl-cu$cuda version=2.28.9 inside=nvidia/nccl/ header=nccl.h ;;
  *) echo "usage: fetch_headers.sh cudnn-frontend|cutlass|nccl" >&2 && exit 2 ;;
esac
root=$(cd "$(dirname "$0")/.." && pwd)
to=$root/.deps/$name
[ "$(cat "$to/version" 2>/dev/null)" = "$version" ] && exit 0

if ! python3 -I -m pip --version >/dev/null 2>&1; then
  echo "fetch_headers: python3 with pip is needed to fetch $name $version (apt-get install python3-pip);" \
    "or put its headers into $to/include" >&2
  exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "Fetching $name $version (headers)"
# Packages with compiled parts name a platform.
platforms=any
for policy in manylinux_2_18 manylinux_2_27 manylinux_2_28 manylinux2014; do
  platforms="$platforms ${policy}_$(uname -m)"
done
# shellcheck disable=SC2046,SC2086  # lists of words
python3 -I -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
  $(printf -- '--platform %s ' $platforms) -d "$work" "$package==$version"
rm -rf "$to"
mkdir -p "$to"
python3 -I - "$work" "$to" "$inside" <<'PYTHON'
import glob, os, sys, zipfile
work, to, inside = sys.argv[1:]
with zipfile.ZipFile(glob.glob(work + "/*.whl")[0]) as wheel:
    for name in wheel.namelist():
        if name.endswith("/") or not (name.startswith((inside + "include/", inside + "lib/libnccl.")) or "LICENSE" in name):
            continue
        path = os.path.join(to, name.removeprefix(inside))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(wheel.read(name))
PYTHON
[ -f "$to/include/$header" ] || { echo "fetch_headers: the package $package has no include/$header" >&2; exit 2; }
echo "$version" >"$to/version"
