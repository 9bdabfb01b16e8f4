#!/bin/sh
# Fails if a document links to a file or a heading that is not there, if a source names a document that is not there, or
# if a document about the code names a file, as `FOLDER/NAME.h` below src/ or the root, that is not there.
# usage: check_links.sh SRC_DIR
set -eu
cd "$1/.."
status=0

# The anchors of a document's headings, as GitHub makes them: lower case, only letters, digits, "-" and "_", "-" for a space.
anchors() {
  sed -n 's/^##* *//p' "$1" | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'
}
for document in *.md docs/*.md docs/*/*.md tests/fixtures/*/*.md; do
  [ -f "$document" ] || continue
  for link in $(grep -oE '\]\([^) ]+\)' "$document" | sed 's/^](//; s/)$//' | grep -vE '^[a-z]+:' || true); do
    file=${link%%#*} target=$document
    if [ -n "$file" ]; then
      target=$(dirname "$document")/$file
      if [ ! -e "$target" ]; then
        echo "check_links: $document links to $link, which is not there" >&2
        status=1
        continue
      fi
    fi
    case $link in
      *'#'*)
        if ! anchors "$target" | grep -qxF -e "${link#*#}"; then
          echo "check_links: $document links to $link, and $target has no such heading" >&2
          status=1
        fi
        ;;
    esac
  done
done
# shellcheck disable=SC2013  # names without spaces
for name in $(grep -rhoE 'docs/[a-z/-]+\.md' src tests bench fuzz recipes scripts cmake -- *.sh | sort -u); do
  if [ ! -e "$name" ]; then
    echo "check_links: a source names $name, which is not there" >&2
    status=1
  fi
done
for document in AGENTS.md CONTRIBUTING.md docs/architecture.md docs/adding-a-model.md; do
  for name in $(tr '`' '\n' <"$document" | grep -xE '[a-z0-9_.-]+(/[a-z0-9_.-]+)+\.(h|cpp|py|sh|cmake|md)' | sort -u); do
    if [ ! -e "$name" ] && [ ! -e "src/$name" ]; then
      echo "check_links: $document names $name, which is not there" >&2
      status=1
    fi
  done
done
exit $status
