#!/bin/bash
# Opens what `superoffload report --watch` serves in a browser without a window, while a run goes on: the page is there,
# is allowed to ask for new data, shows steps that were not there when it was loaded, and the report is written when the
# run has ended.
# usage: report_watch_test.sh PROGRAM SOURCE_DIR
set -eu
program=$1 fixture=$2/tests/fixtures/models/qwen3-tied
for browser in chromium-headless-shell chromium google-chrome ""; do
  [ -n "$browser" ] || { echo "skipped, no chromium-headless-shell here"; exit 77; }
  ! command -v "$browser" >/dev/null || break
done
folder=$(mktemp -d)
train="" report=""
clean() {
  [ -z "$train" ] || kill -9 "$train" 2>/dev/null || true
  [ -z "$report" ] || kill -9 "$report" 2>/dev/null || true
  rm -rf "$folder"
}
trap clean EXIT
cd "$folder"
fail() { echo "report_watch_test: $1" >&2; tail -n 5 train.log report.log browser.log >&2 || true; exit 1; }
wait_for() {  # a command, what for
  for _ in $(seq 600); do "$1" && return 0; sleep 0.1; done
  fail "waited a minute for $2"
}

"$program" train --model "$fixture/model" --data "$fixture/data.jsonl" --output_dir out --max_steps 1000000 \
  --save_strategy no --device cpu --cpu_threads 1 --cache_dir cache --quiet 2>train.log &
train=$!
began() { [ -s out/metrics.jsonl ] && [ "$(wc -l <out/metrics.jsonl)" -gt 20 ]; }
wait_for began "the run's first steps"
"$program" report out --watch 2>report.log &
report=$!
served() { grep -q 'serving http' report.log; }
wait_for served "the server"
address=$(grep -o 'http://127.0.0.1:[0-9]*/' report.log)

# Virtual time: the page looks a hundred times, one look after the other, and the data that it was loaded with stays in
# it. On a busy machine all of that may pass between two steps of the run; then the page is loaded again.
for _ in $(seq 20); do
  timeout 200 "$browser" --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$folder/profile" \
    --virtual-time-budget=300000 --dump-dom "$address" >dom.html 2>browser.log || fail "the browser ends with $?"
  state=$(sed -n 's|.*<p id="state"[^>]*>\([^<]*\)</p>.*|\1|p' dom.html)
  [ "$state" = "The runs are going on; this page follows them." ] || fail "the page says: '$state'"
  loaded=$(grep -o '"last_step":[0-9]*' dom.html | head -n 1 | tr -dc 0-9)
  shown=$(grep -o 'data-label="steps">[0-9,]* of' dom.html | head -n 1 | tr -dc 0-9)
  [ "${loaded:-0}" -gt 0 ] || fail "the page was loaded without steps"
  [ "${shown:-0}" -le "$loaded" ] || break
done
[ "${shown:-0}" -gt "$loaded" ] || fail "the page was loaded at step $loaded and shows ${shown:-nothing}"

kill -TERM "$train"
wait "$train" || true
train=""
wait "$report" || fail "report --watch fails when the run has ended"
report=""
grep -q 'wrote report.html' report.log || fail "no report is written when the run has ended"
if grep -q '"watching":[1-9]' report.html; then fail "the report that is left still asks for data"; fi
