#!/bin/sh
# Fails if a message or a document uses words that nobody knows. docs/glossary.md has those to use instead. In the
# sources only lines with a string count: what people read.
# usage: check_words.sh SRC_DIR
set -eu
cd "$1"
status=0
# Comments, and checks of the program itself, are for those who work on it.
in_messages() {
  grep -rnE "\"[^\"]*($1)" . --include='*.h' --include='*.cpp' --include='*.cu' --include='*.cuh' |
    grep -vE '^[^:]*:[0-9]*: *//|SO_CHECK\('
}
# Phrases, as extended regular expressions: in strings and in documents.
while IFS= read -r phrase; do
  [ -n "$phrase" ] || continue
  if in_messages "$phrase"; then
    echo "check_words: \"$phrase\" in a message; see docs/glossary.md" >&2
    status=1
  fi
  if grep -nE "$phrase" ../docs/*.md ../docs/*/*.md ../README.md ../CONTRIBUTING.md | grep -v '^../docs/glossary.md:'; then
    echo "check_words: \"$phrase\" in a document; see docs/glossary.md" >&2
    status=1
  fi
done <<'PHRASES'
places? for new state
former gradient
were void|, [{}0-9]+ void
of which [{}0-9]+ stood
% the host's
undo pool
rotation table
made of their masters
changed into each other
a plan made anew
as is quickest and fits
a pipeline needs a few
a gradient's place
PHRASES
# In strings alone: documents about the inside of the program explain them first.
while IFS= read -r phrase; do
  [ -n "$phrase" ] || continue
  if in_messages "$phrase"; then
    echo "check_words: \"$phrase\" in a message; see docs/glossary.md" >&2
    status=1
  fi
done <<'PHRASES'
ahead of the verdict
the verdict
device-owned
host-owned
PHRASES
exit $status
