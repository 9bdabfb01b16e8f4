#!/bin/sh
# --download with huggingface_hub itself, from a server on this machine (hub_server.py): the hf of the Python that has
# the module, and the module where there is no hf in PATH.
# usage: hub_test.sh PROGRAM SOURCE_DIR
set -eu
program=$1 source=$2
python=""
for one in "${SO_TORCH_PYTHON:-}" "$source/.deps/torch/bin/python3" python3; do
  [ -n "$one" ] && "$one" -I -c 'import huggingface_hub' 2>/dev/null && python=$one && break
done
if [ -z "$python" ]; then
  echo "hub_test: skipped, no python3 has huggingface_hub (install_dependencies.sh torch; SO_TORCH_PYTHON names one)"
  exit 77
fi
folder=$(mktemp -d)
"$python" "$source/tests/hub_server.py" "$folder/address" 2>/dev/null &
server=$!
trap 'kill $server; rm -rf "$folder"' EXIT
fail() {
  echo "hub_test: $1" >&2
  cat "$folder/said" >&2
  exit 1
}
tries=0
until [ -e "$folder/address" ]; do
  tries=$((tries + 1))
  [ $tries -lt 600 ] || { echo "hub_test: the server does not start" >&2; exit 1; }
  sleep 0.1
done
mkdir "$folder/here" "$folder/module"
printf '#!/bin/sh\nexec %s "$@"\n' "$("$python" -c 'import sys; print(sys.executable)')" >"$folder/module/python3"
chmod +x "$folder/module/python3"
cd "$folder/here"
# As it stands in PATH, with no other settings of the hub than these.
user() {
  env -i ASAN_OPTIONS="${ASAN_OPTIONS-}" LSAN_OPTIONS="${LSAN_OPTIONS-}" UBSAN_OPTIONS="${UBSAN_OPTIONS-}" HOME="$folder" \
    HF_ENDPOINT="$(cat "$folder/address")" HF_HUB_DISABLE_XET=1 HF_HUB_DISABLE_TELEMETRY=1 CUDA_VISIBLE_DEVICES= "$@" \
    >"$folder/said" 2>&1
}
train() {
  home=$1 path=$2
  shift 2
  user HF_HOME="$home" PATH="$path:/usr/bin:/bin" "$program" train --model tiny/llama --data tiny/chats \
    --eval_data tiny/chats --device cpu --max_steps 2 --batch_size 2 --max_length 32 --output_dir "out-$home" "$@"
}
train hf "$(dirname -- "$python")" --download || fail "with hf the run ends so"
# HF_HOME may be relative to where the user is.
[ -d hf/hub/models--tiny--llama/snapshots ] || fail "the model is not in HF_HOME"
grep -q '"model":"tiny/llama@' out-hf/metrics.jsonl || fail "the run does not record the model's name"
train module "$folder/module" --download || fail "with the module alone the run ends so"
cmp out-hf/model.safetensors out-module/model.safetensors || fail "the two runs differ"
rm -r out-hf
train hf /nowhere || fail "what has been fetched is not found"
for case in "tiny/absent" "tiny/llama@absent"; do
  code=0
  user HF_HOME=hf PATH="$(dirname -- "$python"):/usr/bin:/bin" "$program" plan --model "$case" --download || code=$?
  [ $code = 2 ] || fail "$case ends with $code"
  grep -q "hf download tiny/.* ended with exit code 1" "$folder/said" || fail "$case is refused so"
done
