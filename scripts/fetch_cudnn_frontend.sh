#!/bin/sh
# Fetches the headers of cudnn-frontend, from its package in the Python package index, into .deps/: no distribution
# packages them. Does nothing if they are there.
set -eu
version=1.18.0
root=$(cd "$(dirname "$0")/.." && pwd)
to=$root/.deps/cudnn-frontend
[ "$(cat "$to/version" 2>/dev/null)" = "$version" ] && exit 0

if ! python3 -m pip --version >/dev/null 2>&1; then
  echo "fetch_cudnn_frontend: python3 with pip is needed to fetch cudnn-frontend $version (apt-get install python3-pip);" \
    "or put its headers into $to/include" >&2
  exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "Fetching cudnn-frontend $version (headers)"
python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
  --platform manylinux_2_27_x86_64 --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 \
  --platform manylinux_2_27_aarch64 --platform manylinux_2_28_aarch64 -d "$work" "nvidia-cudnn-frontend==$version"
rm -rf "$to"
mkdir -p "$to"
python3 - "$work" "$to" <<'PYTHON'
import glob, sys, zipfile
work, to = sys.argv[1:]
with zipfile.ZipFile(glob.glob(work + "/*.whl")[0]) as wheel:
    names = [n for n in wheel.namelist() if n.startswith("include/") or "LICENSE" in n]
    wheel.extractall(to, names)
PYTHON
[ -f "$to/include/cudnn_frontend.h" ] || { echo "fetch_cudnn_frontend: the package has no include/cudnn_frontend.h" >&2; exit 2; }
echo "$version" >"$to/version"
