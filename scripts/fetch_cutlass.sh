#!/bin/sh
# Fetches the headers of CUTLASS, from NVIDIA's package in the Python package index, into .deps/: the distributions'
# packages are older or none. Does nothing if they are there.
set -eu
version=4.2.0.0
root=$(cd "$(dirname "$0")/.." && pwd)
to=$root/.deps/cutlass
[ "$(cat "$to/version" 2>/dev/null)" = "$version" ] && exit 0

if ! python3 -m pip --version >/dev/null 2>&1; then
  echo "fetch_cutlass: python3 with pip is needed to fetch CUTLASS $version (apt-get install python3-pip);" \
    "or put its headers into $to/include" >&2
  exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "Fetching CUTLASS $version (headers)"
python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: -d "$work" \
  "nvidia-cutlass==$version"
rm -rf "$to"
mkdir -p "$to"
python3 - "$work" "$to" <<'PYTHON'
import glob, os, sys, zipfile
work, to = sys.argv[1:]
source = "cutlass_library/source/"
with zipfile.ZipFile(glob.glob(work + "/*.whl")[0]) as wheel:
    for name in wheel.namelist():
        if name.startswith(source + "include/") or "LICENSE" in name:
            path = os.path.join(to, name.removeprefix(source))
            if not name.endswith("/"):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as file:
                    file.write(wheel.read(name))
PYTHON
[ -f "$to/include/cutlass/cutlass.h" ] || { echo "fetch_cutlass: the package has no cutlass/cutlass.h" >&2; exit 2; }
echo "$version" >"$to/version"
