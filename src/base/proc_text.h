// The forms that the kernel writes its files in. Any text is taken: what is not in the form has no value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace so {

std::string_view trimmed(std::string_view text);  // without white space at its end
std::vector<std::string_view> lines_of(std::string_view text);
std::vector<std::string_view> words_of(std::string_view text);  // between white space

// "12": a whole number below 2^64, with nothing before or behind it.
std::optional<std::uint64_t> parse_whole(std::string_view text);
// "fff": a number of at most 64 bits in hexadecimal digits, without "0x".
std::optional<std::uint64_t> parse_hex(std::string_view text);

// "0-3,8" as numbers, ascending, each once; an empty text is an empty list. Numbers from 65,536 on are in no list.
std::optional<std::vector<int>> parse_cpu_list(std::string_view text);
std::string cpu_list_text(const std::vector<int>& ascending);  // the reverse

// Returns the text behind `key`, without colon and white space, from the first line like "Cpus_allowed_list:\t0-1".
std::optional<std::string_view> value_after(std::string_view text, std::string_view key);

// "always [madvise] never": the word in brackets.
std::optional<std::string_view> chosen_word(std::string_view text);

// "32.0 GT/s PCIe": 32.0.
std::optional<double> parse_link_speed(std::string_view text);

}  // namespace so
