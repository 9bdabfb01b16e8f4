// A trace as a file for Perfetto (ui.perfetto.dev) and chrome://tracing: the Trace Event Format in JSON.
#pragma once

#include <filesystem>

#include "device/trace.h"

namespace so {

// Streams are the threads of one process and host threads those of another, each under its name; copies carry their
// bytes, direction and rate. Remarks of the trace are kept under "otherData". Replaces an existing file. Throws Error.
void write_trace_file(const std::filesystem::path& path, const Trace& trace);

}  // namespace so
