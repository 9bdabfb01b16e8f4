#!/bin/sh
# Fails if a source opens or copies files past base/file.cpp, the guarded layer: regular files only, opened so that a FIFO
# does not hang, with a limit on what is read. The exceptions, each with its reason:
#   base/file.cpp            is the guarded layer
#   base/file_system.cpp     is its questions about the file system
#   device/gpu_place.cpp, device/host_pages.cpp, base/host_memory.cpp   read the kernel's /proc, /sys and cgroup files,
#                            which have no size
#   base/run_log.cpp         opens run.log with the same guards, since it may neither throw nor log
#   base/standard_streams.cpp   opens /dev/null in place of a closed stream
#   data/token_cache.cpp     makes a file that is its owner's alone from its first moment
#   io/atomic_directory.cpp, io/held_directory.cpp, io/own_files.cpp   open directories, to hold and flush them, and to
#                            remove by name in them
#   io/temporary_cache.cpp   opens its directory, to hold it and to empty it from a signal handler
#   io/run_lock.cpp          opens a file that it locks, with the same guards and no link followed
# JSON of others is parsed with a limit on its depth (base/json_tree.h); those that have one of their own:
#   model/config.cpp, options/deepspeed_json.cpp, plan/machine/hardware.cpp, checkpoint/trainer_state.cpp
# and checkpoint/export.cpp, checkpoint/rope_extension.cpp, options/deepspeed_config.cpp, options/hjson.cpp, plan/machine/rate_cache.cpp parse
# what has been through one of these, or is the program's own.
# usage: check_file_calls.sh SRC_DIR
set -eu
cd "$1"
exceptions='^(base/file|base/file_system|base/run_log|base/standard_streams|device/gpu_place|device/host_pages|base/host_memory|data/token_cache|io/atomic_directory|io/held_directory|io/own_files|io/run_lock|io/temporary_cache)\.cpp:'
calls='std::(basic_)?[io]?fstream|(^|[^a-zA-Z_])(fopen|freopen|fdopen|creat|openat|mkstemp)[[:space:]]*\(|(^|[^a-zA-Z_:])::open[[:space:]]*\(|(fs|filesystem)::copy(_file)?[[:space:]]*\(|std::rdbuf|filebuf'
found=$(grep -rnE "$calls" . --include='*.h' --include='*.cpp' --include='*.cu' --include='*.cuh' | sed 's|^\./||' |
  grep -vE "$exceptions" || true)
if [ -n "$found" ]; then
  echo "$found"
  echo "check_file_calls: files are opened through base/file.h and copied through base/file_system.h" >&2
  exit 1
fi
parsers='^(base/json_tree\.h|(model/config|options/deepspeed_json|options/deepspeed_config|options/hjson|plan/machine/hardware|plan/machine/rate_cache|checkpoint/trainer_state|checkpoint/export|checkpoint/rope_extension)\.cpp):'
found=$(grep -rniE 'json::parse[[:space:]]*\(' . --include='*.h' --include='*.cpp' | sed 's|^\./||' | grep -vE "$parsers" || true)
if [ -n "$found" ]; then
  echo "$found"
  echo "check_file_calls: JSON is parsed through base/json_tree.h, which limits its depth" >&2
  exit 1
fi
