#!/bin/sh
# Makes a small instruction data set from the package lists that apt keeps: short Alpaca records about Debian packages.
#
# usage: make_debian_dataset.sh OUT_TRAIN OUT_EVAL
#
# OUT_TRAIN gets up to 6000 records (at least 2000, or the script fails), OUT_EVAL 200 about other packages; both JSONL.
# Packages are picked at even distances from the sorted list, so equal lists give equal files. Needs apt-cache and awk,
# no network. Exit code 2: a mistake to mend, said on standard error.
set -eu
# Bytes, not characters: sorting and escaping must not depend on the user's locale.
LC_ALL=C
export LC_ALL

if [ $# -ne 2 ]; then
  echo "usage: $0 OUT_TRAIN OUT_EVAL" >&2
  exit 2
fi
if [ "$1" = "$2" ]; then
  echo "$0: OUT_TRAIN and OUT_EVAL are the same file" >&2
  exit 2
fi
if ! command -v apt-cache >/dev/null; then
  echo "$0: there is no apt-cache; this script needs Debian or Ubuntu" >&2
  exit 2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 2' HUP INT TERM

# One line a usable package: name, section, short description, dependencies, homepage, separated by tabs.
apt-cache dumpavail | awk '
  function flush() {
    # Debug symbols, translations and transitional packages all say the same.
    if (name != "" && section != "" && length(description) >= 20 && length(description) <= 120 &&
        description !~ /[Tt]ransitional|[Dd]ummy|[Dd]ebug(ging)? symbols|virtual package/ &&
        section !~ /(^|\/)(debug|oldlibs|localization|metapackages|tasks)$/)
      printf "%s\t%s\t%s\t%s\t%s\n", name, section, description, depends, homepage
    name = section = description = depends = homepage = field = ""
  }
  # The first three packages of a dependency list, without versions, alternatives and repetitions; "..." for the rest.
  function first_names(list,    parts, count, i, found, item, seen, taken) {
    count = split(list, parts, /, */)
    found = ""
    taken = 0
    for (i = 1; i <= count; ++i) {
      item = parts[i]
      sub(/^ +/, "", item)
      sub(/[ |:(].*/, "", item)
      if (item == "" || (item in seen)) continue
      if (taken == 3) return found " ..."
      seen[item] = 1
      ++taken
      found = found (found == "" ? "" : " ") item
    }
    return found
  }
  { gsub(/[\001-\010\013-\037\177]/, "") }
  /^$/ { flush(); next }
  /^[ \t]/ { next }  # continuation lines: tags and long descriptions, which not every list has
  {
    value = $0
    sub(/^[^:]*:[ \t]*/, "", value)
    gsub(/\t/, " ", value)
    sub(/ +$/, "", value)
  }
  /^Package:/ { name = value }
  /^Section:/ { section = value }
  /^Description(-en)?:/ { description = value }
  /^Depends:/ { depends = first_names(value) }
  /^Homepage:/ { homepage = value }
  END { flush() }
' | sort -t "$(printf '\t')" -k 1,1 | awk -F '\t' '$1 != last { print; last = $1 }' >"$work/packages"

count=$(wc -l <"$work/packages")
if [ "$count" -lt 2200 ]; then
  echo "$0: apt knows only $count packages with a description, 2200 are needed; run 'apt-get update' as root first" >&2
  exit 2
fi

awk -F '\t' -v count="$count" -v train_file="$work/train" -v eval_file="$work/eval" '
  # By split and join: what a backslash in a replacement of gsub means differs between awks.
  function escaped(text, pattern, replacement,    parts, n, i, joined) {
    n = split(text, parts, pattern)
    joined = parts[1]
    for (i = 2; i <= n; ++i) joined = joined replacement parts[i]
    return joined
  }
  function quoted(text) {
    return "\"" escaped(escaped(text, "\\\\", "\\\\"), "\"", "\\\"") "\""
  }
  function record(instruction, input, output) {
    return "{\"instruction\": " quoted(instruction) ", \"input\": " quoted(input) ", \"output\": " quoted(output) "}"
  }
  function sentence(text) {
    return text (text ~ /[.!?]$/ ? "" : ".")
  }
  function and_list(names,    parts, n, i, text) {
    n = split(names, parts, " ")
    text = parts[1]
    for (i = 2; i <= n; ++i) text = text (parts[i] == "..." ? ", among others" : (i == n ? " and " : ", ") parts[i])
    return text
  }
  BEGIN {
    wanted = count < 6200 ? count : 6200
    every = int(wanted / 200)  # one in so many picks goes to the evaluation set
  }
  # Pick number k is the first line at or after k * count / wanted.
  int(NR * wanted / count) == int((NR - 1) * wanted / count) { next }
  {
    area = $2
    sub(/.*\//, "", area)
    turn = int(picks / every)
    for_eval = picks % every == 0 && turn < 200
    kind = (picks % every + turn) % 4  # both sets get every kind of question
    ++picks
    if (kind == 1 && $4 != "")
      line = record("What does the Debian package " $1 " depend on?", "",
                    "The package " $1 " depends on " and_list($4) ". It provides: " sentence($3))
    else if (kind == 2)
      line = record("Which section of the Debian archive does this package belong to?", $1 ": " $3,
                    "The package " $1 " belongs to the section " area ".")
    else if (kind == 3)
      line = record("Name the Debian package that fits the description.", $3,
                    "That is " $1 ", a package of the section " area "." \
                    ($5 == "" ? "" : " Home page: " $5))
    else
      line = record("What does the Debian package " $1 " do?", "",
                    $1 " is a package of the section " area ". In short: " sentence($3))
    print line >(for_eval ? eval_file : train_file)
  }
' "$work/packages"

# Into place only when both are whole.
for pair in "train:$1" "eval:$2"; do
  out=${pair#*:}
  mkdir -p "$(dirname "$out")"
  cp "$work/${pair%%:*}" "$out.partial"
  mv "$out.partial" "$out"
done
echo "$1: $(wc -l <"$1") records; $2: $(wc -l <"$2") records" >&2
