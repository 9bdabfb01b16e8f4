// Texts that a run generated while it trained, and their record: samples.jsonl, one JSON object a line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/step_lines.h"

namespace so {

inline constexpr std::string_view samples_file = "samples.jsonl";

struct Sample {
  std::int64_t step = 0;    // optimizer steps that the weights had taken
  std::int64_t sample = 0;  // the prompt's number, from 1
  std::string prompt;       // all that the model read
  std::string text;
  std::int64_t tokens = 0;    // generated
  std::string finish_reason;  // "eos", "length", or "not finite": the logits were not
};

// "<output directory>/samples.jsonl" (io/step_lines.h).
class SamplesLog {
 public:
  explicit SamplesLog(const std::filesystem::path& output_directory);
  // Appends them in one write.
  void add(std::span<const Sample> samples);
  void truncate_after(std::int64_t step) { lines_.truncate_after(step); }
  bool lost_any() const { return lines_.lost_any(); }

 private:
  StepLines lines_;
};

// The lines of samples, each with its end. What is not UTF-8 in a text is replaced.
std::string samples_text(std::span<const Sample> samples);

// The part of a record that could be read; the record is not trusted.
struct RecordedSamples {
  std::vector<Sample> samples;  // in the file's order
  // Where and why reading ended before the end of the file; empty if all was read. A last line without its end is one
  // that is being written, and is left out without a word.
  std::string damage;
};
RecordedSamples read_samples_text(std::string_view text);
// Reads those of a run's output directory; none if it has no such file.
RecordedSamples read_samples_file(const std::filesystem::path& output_directory);

}  // namespace so
