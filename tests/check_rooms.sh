#!/bin/sh
# Fails if a room includes a room above it (the order is that of docs/architecture.md).
# usage: check_rooms.sh SRC_DIR
set -eu
cd "$1"
rooms="base device ops optim parallel offload plan model data io train cli"
allowed=""
status=0
for room in $rooms; do
  allowed="$allowed $room"
  [ -d "$room" ] || continue
  for target in $rooms; do
    case " $allowed " in *" $target "*) continue ;; esac
    if grep -rnE "#include \"$target/" "$room" --include='*.h' --include='*.cpp' --include='*.cu' --include='*.cuh'; then
      echo "check_rooms: '$room' may not include '$target'" >&2
      status=1
    fi
  done
done
# Device differences stay behind device/ and ops/.
if grep -rnE '#include "(device|ops)/cpu/' model offload plan data io train 2>/dev/null | grep -v '^model/.*_test'; then
  echo "check_rooms: a backend's header is included above ops/" >&2
  status=1
fi
exit $status
