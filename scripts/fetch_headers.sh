#!/bin/sh
# usage: fetch_headers.sh cudnn-frontend|cutlass
# Fetches a library's headers, from its package in the Python package index, into .deps/NAME: no distribution packages
# them, or an old version. Does nothing if they are there.
set -eu
name=${1:-}
case $name in
  cudnn-frontend) package=nvidia-cudnn-frontend version=1.18.0 inside='' header=cudnn_frontend.h ;;
  cutlass) package=nvidia-cutlass version=4.2.0.0 inside=cutlass_library/source/ header=cutlass/cutlass.h ;;
  *) echo "usage: fetch_headers.sh cudnn-frontend|cutlass" >&2 && exit 2 ;;
esac
root=$(cd "$(dirname "$0")/.." && pwd)
to=$root/.deps/$name
[ "$(cat "$to/version" 2>/dev/null)" = "$version" ] && exit 0

if ! python3 -m pip --version >/dev/null 2>&1; then
  echo "fetch_headers: python3 with pip is needed to fetch $name $version (apt-get install python3-pip);" \
    "or put its headers into $to/include" >&2
  exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "Fetching $name $version (headers)"
# Packages with compiled parts name a platform; the headers are the same in all.
python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
  --platform manylinux_2_27_x86_64 --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 \
  --platform manylinux_2_27_aarch64 --platform manylinux_2_28_aarch64 --platform any -d "$work" "$package==$version"
rm -rf "$to"
mkdir -p "$to"
python3 - "$work" "$to" "$inside" <<'PYTHON'
import glob, os, sys, zipfile
work, to, inside = sys.argv[1:]
with zipfile.ZipFile(glob.glob(work + "/*.whl")[0]) as wheel:
    for name in wheel.namelist():
        if name.endswith("/") or not (name.startswith(inside + "include/") or "LICENSE" in name):
            continue
        path = os.path.join(to, name.removeprefix(inside))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(wheel.read(name))
PYTHON
[ -f "$to/include/$header" ] || { echo "fetch_headers: the package $package has no include/$header" >&2; exit 2; }
echo "$version" >"$to/version"
