// A trace as a file for Perfetto (ui.perfetto.dev) and chrome://tracing: the Trace Event Format in JSON.
#pragma once

#include <filesystem>
#include <string_view>

#include "device/trace.h"

namespace so {

// Streams are the threads of one process and host threads those of another, each under its name; copies carry their
// bytes, direction and rate. States of buckets are in a process of
// their own, "buckets", each span called by state and bucket; its threads are as few rows as hold them without overlap,
// lowest first, where a bucket keeps its row while it can: there may be a thousand buckets. Remarks of the trace are
// kept under "otherData". Replaces an existing file. Throws Error.
void write_trace_file(const std::filesystem::path& path, const Trace& trace);

// Whether a file that begins so is one of those.
bool is_own_trace(std::string_view beginning);

}  // namespace so
