// A record that a run keeps of itself and goes on with when it is resumed: JSON objects with a "step", one a line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/file.h"
#include "io/record_file.h"

namespace so {

// For one thread. Every append is one write(), so a reader, also after kill -9, sees whole lines and at most one cut
// short at the end.
class StepLines {
 public:
  // Opens the file for appending; created if absent. A last line that was cut short is dropped. `kind` is what messages
  // call the lines: "metrics".
  StepLines(std::filesystem::path path, std::string kind);

  const std::filesystem::path& path() const { return path_; }
  // Appends one line or several, each with its end.
  void append(std::string_view lines) { writer_.append(file_, lines); }
  // Drops the lines of steps after `step`. The others keep their bytes. The file is replaced in one piece; a line in
  // the middle that is not such a line is an Error that names it.
  void truncate_after(std::int64_t step);
  // Whether a line could not be written; it was reported then.
  bool lost_any() const { return writer_.lost_any(); }

 private:
  std::filesystem::path path_;
  std::string kind_;
  File file_;
  RecordWriter writer_;
};

}  // namespace so
