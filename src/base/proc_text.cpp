#include "base/proc_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace so {
namespace {

constexpr std::string_view white = " \t\n\r\v\f";
constexpr std::uint64_t most_cpus = 65536;

std::optional<std::uint64_t> parse_digits(std::string_view text, int base) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<std::string_view> parts_of(std::string_view text, std::string_view separators, bool keep_empty) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find_first_of(separators, begin), text.size());
    if (end > begin || keep_empty) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  const std::size_t last = text.find_last_not_of(white);
  return last == std::string_view::npos ? std::string_view() : text.substr(0, last + 1);
}

std::vector<std::string_view> lines_of(std::string_view text) { return parts_of(text, "\n", false); }
std::vector<std::string_view> words_of(std::string_view text) { return parts_of(text, white, false); }

std::optional<std::uint64_t> parse_whole(std::string_view text) { return parse_digits(text, 10); }
std::optional<std::uint64_t> parse_hex(std::string_view text) { return parse_digits(text, 16); }

std::optional<std::vector<int>> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  text = trimmed(text);
  if (text.ends_with(',')) return std::nullopt;
  for (const std::string_view part : parts_of(text, ",", true)) {
    const std::size_t dash = part.find('-');
    const auto first = parse_whole(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : parse_whole(part.substr(dash + 1));
    if (!first || !last || *first > *last || *last >= most_cpus) return std::nullopt;
    if (cpus.size() > most_cpus) return std::nullopt;  // ranges that overlap again and again
    for (std::uint64_t cpu = *first; cpu <= *last; ++cpu) cpus.push_back(static_cast<int>(cpu));
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

std::string cpu_list_text(const std::vector<int>& ascending) {
  std::string text;
  for (std::size_t i = 0; i < ascending.size();) {
    std::size_t last = i;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", ascending[i]);
    if (last > i) text += fmt::format("-{}", ascending[last]);
    i = last + 1;
  }
  return text;
}

std::optional<std::string_view> value_after(std::string_view text, std::string_view key) {
  for (std::string_view line : lines_of(text)) {
    if (!line.starts_with(key)) continue;
    line.remove_prefix(key.size());
    const std::size_t value = line.find_first_not_of(": \t");
    if (value == 0) continue;  // another key, of which this is the beginning
    return value == std::string_view::npos ? std::string_view() : trimmed(line.substr(value));
  }
  return std::nullopt;
}

std::optional<std::string_view> chosen_word(std::string_view text) {
  const std::size_t begin = text.find('['), end = text.find(']');
  if (begin == std::string_view::npos || end == std::string_view::npos || end <= begin + 1) return std::nullopt;
  return text.substr(begin + 1, end - begin - 1);
}

std::optional<double> parse_link_speed(std::string_view text) {
  double speed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), speed);
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  if (error != std::errc() || !unit.starts_with(" GT/s") || !(speed > 0 && speed < 1e4)) return std::nullopt;
  return speed;
}

}  // namespace so
