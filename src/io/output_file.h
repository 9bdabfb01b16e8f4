// The one rule for files that an option names and the program writes: --trace FILE, --output FILE.
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

namespace so {

// Whether a file that begins so was written by this program.
using IsOwnFile = std::function<bool(std::string_view beginning)>;

// Throws Error, naming `option` and the way out, unless a file can be written at `path`: it is absent, or a regular
// file that is empty, or one that `is_own` knows or `overwrite` allows to be replaced; never a directory, a device, a
// FIFO or a symbolic link. Its directory must be there and writable, but for `made_later`, which the command makes by
// itself; none is made. Changes nothing, so it stands at the start of a command, and in a dry run.
void require_output_file(const std::filesystem::path& path, std::string_view option, const IsOwnFile& is_own,
                         bool overwrite = false, const std::filesystem::path& made_later = {});

}  // namespace so
