#include "io/samples.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "base/json_tree.h"

namespace so {
namespace {

constexpr std::size_t most_sample_bytes = std::size_t{16} << 20;

// The prompt may be a user's file, and a text can end within a character.
std::string sample_line(const Sample& s) {
  const nlohmann::ordered_json object{{"step", s.step}, {"sample", s.sample}, {"prompt", s.prompt},
                                      {"text", s.text}, {"tokens", s.tokens}, {"finish_reason", s.finish_reason}};
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string text_at(const nlohmann::json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::int64_t number_at(const nlohmann::json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number_integer() ? found->get<std::int64_t>() : -1;
}

std::optional<Sample> sample_of(std::string_view text) {
  if (text.size() > most_sample_bytes) return std::nullopt;
  const auto line = json_tree(text);
  if (!line.is_object()) return std::nullopt;
  Sample sample{.step = number_at(line, "step"),
                .sample = number_at(line, "sample"),
                .prompt = text_at(line, "prompt"),
                .text = text_at(line, "text"),
                .tokens = number_at(line, "tokens"),
                .finish_reason = text_at(line, "finish_reason")};
  if (sample.step < 0 || sample.sample < 1) return std::nullopt;
  return sample;
}

}  // namespace

SamplesLog::SamplesLog(const std::filesystem::path& output_directory)
    : lines_(output_directory / samples_file, "samples") {}

void SamplesLog::add(std::span<const Sample> samples) { lines_.append(samples_text(samples)); }

std::string samples_text(std::span<const Sample> samples) {
  std::string lines;
  for (const Sample& sample : samples) lines += sample_line(sample);
  return lines;
}

RecordedSamples read_samples_text(std::string_view text) {
  RecordedSamples recorded;
  for (std::size_t begin = 0, number = 1; begin < text.size(); ++number) {
    const std::size_t end = text.find('\n', begin);
    if (end == text.npos) break;
    std::optional<Sample> sample = sample_of(text.substr(begin, end - begin));
    if (!sample) {
      recorded.damage = fmt::format("line {} is no sample", number);
      break;
    }
    recorded.samples.push_back(std::move(*sample));
    begin = end + 1;
  }
  return recorded;
}

RecordedSamples read_samples_file(const std::filesystem::path& output_directory) {
  const std::filesystem::path path = output_directory / samples_file;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return {};
  const MappedFile map(path);
  return read_samples_text(map.text());
}

}  // namespace so
