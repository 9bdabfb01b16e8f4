#!/bin/sh
# Fails if a source includes a room that its own room does not use, if a room declares a use that no source has, or if a
# source lies in no room. The graph is the one that the build declares, in cmake/rooms.cmake.
# usage: check_rooms.sh SRC_DIR
set -eu
cd "$1"
graph=$(tr '\n' ' ' <../cmake/rooms.cmake | sed 's/so_room(/\n&/g' | sed -n 's/^so_room(\([^)]*\)).*/\1/p')
grep -rnE '^#include "' . --include='*.h' --include='*.cpp' --include='*.cu' --include='*.cuh' | sed 's|^\./||' |
  awk -v graph="$graph" '
    # The longest declared folder that holds the path; empty: none.
    function room_of(path,    folder) {
      folder = path
      while (sub("/[^/]*$", "", folder)) if (folder in declared) return folder
      return ""
    }
    BEGIN {
      lines = split(graph, line, "\n")
      for (l = 1; l <= lines; l++) {
        words = split(line[l], word, " ")
        if (words == 0) continue
        declared[word[1]] = 1
        uses = 0
        for (w = 2; w <= words; w++) {
          if (word[w] == "USES") uses = 1
          else if (word[w] == "LIBRARIES") uses = 0
          else if (uses) may[word[1], word[w]] = 1
        }
      }
    }
    {
      split($0, part, ":")
      source = part[1]
      header = $0
      sub("^[^\"]*\"", "", header)
      sub("\".*", "", header)
      from = room_of(source)
      if (from == "") { print source ": lies in no room of cmake/rooms.cmake"; bad = 1; next }
      to = room_of(header)
      if (to == "" || to == from || to == "base") next
      used[from, to] = 1
      if (!((from, to) in may)) { print source ":" part[2] ": " from " may not include " to " (" header ")"; bad = 1 }
    }
    END {
      for (pair in may) if (!(pair in used)) {
        split(pair, ends, SUBSEP)
        print "cmake/rooms.cmake: " ends[1] " declares that it uses " ends[2] ", and does not"
        bad = 1
      }
      exit bad
    }' || {
  echo "check_rooms: see cmake/rooms.cmake and docs/architecture.md" >&2
  exit 1
}
# Differences between devices stay behind device/, ops/, optim/ and ranks/collectives/; of these all but the last may ask which
# kind a device is of.
if grep -rnE '#include "(device|ops|optim|ranks/collectives)/(cpu|cuda|nccl)/' . --include='*.h' --include='*.cpp' |
  sed 's|^\./||' | grep -vE '^(device|ops|optim|ranks/collectives)/'; then
  echo "check_rooms: a backend's header is included above the rooms that implement one" >&2
  exit 1
fi
if grep -rnE 'DeviceKind::' . --include='*.h' --include='*.cpp' | sed 's|^\./||' | grep -vE '^(device|ops|optim)/'; then
  echo "check_rooms: above device/, ops/ and optim/ ask for a property (device/backend.h), not for the kind" >&2
  exit 1
fi
