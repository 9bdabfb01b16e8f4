#include "io/step_lines.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json_tree.h"

namespace so {
namespace {

std::int64_t step_of_line(std::string_view line, const std::filesystem::path& path, const std::string& kind,
                          std::size_t number) {
  const auto object = json_tree(line);
  if (object.is_object()) {
    const auto step = object.find("step");
    if (step != object.end() && step->is_number_integer()) return step->get<std::int64_t>();
  }
  fail("{}:{}: not a line of {} (a JSON object with an integer \"step\"); mend or move the file away",
       printable_path(path), number, kind);
}

// The lines of steps up to `last`, and the end of the last whole line.
std::string kept_lines(const std::filesystem::path& path, const std::string& kind, std::int64_t last) {
  const MappedFile map(path);
  const std::string_view text = map.text();
  std::string kept;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    if (end == text.npos) break;  // cut short by a kill
    const std::string_view line = text.substr(begin, end - begin);
    if (step_of_line(line, path, kind, ++number) <= last) kept.append(text, begin, end + 1 - begin);
    begin = end + 1;
  }
  return kept;
}

}  // namespace

StepLines::StepLines(std::filesystem::path path, std::string kind)
    : path_(std::move(path)), kind_(std::move(kind)), file_(File::append(path_)) {
  const std::uint64_t size = file_.size();
  if (size == 0) return;
  std::byte last{};
  File::open(path_).pread_exact({&last, 1}, size - 1);
  if (last != std::byte{'\n'}) truncate_after(std::numeric_limits<std::int64_t>::max());
}

void StepLines::truncate_after(std::int64_t step) {
  const std::string kept = kept_lines(path_, kind_, step);
  if (kept.size() == file_.size()) return;
  write_text_file_atomically(path_, kept);
  file_ = File::append(path_);  // the old descriptor is of the file that was replaced
}

}  // namespace so
