#!/bin/sh
# Prints which tests a run of ctest did not execute, each with its reason, and how many of how many; nothing if it
# executed all.
# usage: skipped_tests.sh NAME JUNIT_FILE     (NAME: of the build; JUNIT_FILE: as ctest --output-junit writes it)
set -eu
awk -v name="$1" '
  function text(s) {
    gsub(/&lt;/, "<", s); gsub(/&gt;/, ">", s); gsub(/&quot;/, "\"", s); gsub(/&apos;/, "'"'"'", s); gsub(/&amp;/, "\\&", s)
    return s
  }
  /^[ \t]*<testcase / {
    tests++
    skipped = /status="notrun"/ || /status="disabled"/
    disabled = /status="disabled"/
    test = $0; sub(/.*<testcase name="/, "", test); sub(/".*/, "", test)
    reason = ""; last = ""; in_reason = 0
    next
  }
  /<\/testcase>/ {
    if (skipped) {
      if (disabled) reason = "disabled"
      else if (reason == "") reason = last == "" ? "no reason given" : last
      lines = lines "  " text(test) ": " text(reason) "\n"
      count++
    }
    skipped = 0
    next
  }
  !skipped { next }
  # GoogleTest prints FILE:LINE: Skipped, then the reason, then that the test was skipped.
  /\[  SKIPPED \]/ { in_reason = 0; next }
  in_reason { if ($0 != "") reason = reason (reason == "" ? "" : " ") $0; next }
  /: Skipped$/ { in_reason = reason == ""; next }
  {
    line = $0; sub(/.*<system-out>/, "", line); sub(/<\/system-out>.*/, "", line)
    if (line ~ /[^ \t]/ && line !~ /<skipped/) last = line
  }
  END { if (count) printf "%s: %d of %d tests skipped\n%s", name, count, tests, lines }
' "$2"
