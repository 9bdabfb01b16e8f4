// The log file of a run: every message of level `detail` and above, with its time, whatever the terminal is shown.
#pragma once

#include <filesystem>
#include <string_view>

namespace so {

// From now on messages are kept until open_run_log() or close_run_log().
void begin_run_log();

// Appends what was kept, and then each message as it comes, to `file`. A file that cannot be written, or that another
// program has made (its first line is not ours), costs one warning and is left alone: a run does not fail for its log.
// Links, FIFOs and devices are not followed.
void open_run_log(const std::filesystem::path& file);

void close_run_log();

// The first line of every such file.
extern const std::string_view run_log_heading;

}  // namespace so
