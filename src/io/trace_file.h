// A trace as a file for Perfetto (ui.perfetto.dev) and chrome://tracing: the Trace Event Format in JSON.
#pragma once

#include <filesystem>
#include <string_view>

#include "device/trace.h"

namespace so {

// The viewer shows streams as the threads of one process and host threads as those of another, each under its name.
// Copies carry their bytes, direction and rate. A third process, "buckets", has a span for each state of a bucket,
// called by state and bucket. There may be a thousand buckets, so they share as few rows as fit without overlap, the
// lowest first; a bucket keeps its row while it can. The trace's remarks are under "otherData". Replaces an existing
// file. Throws Error.
void write_trace_file(const std::filesystem::path& path, const Trace& trace);

// Whether a file that begins so is one of those.
bool is_own_trace(std::string_view beginning);

}  // namespace so
