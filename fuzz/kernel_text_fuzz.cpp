// The kernel's forms from untrusted bytes: CPU lists, schemata, fields. A value, or none; what is read can be written.
#include <cstdint>
#include <string_view>

#include "base/proc_text.h"
#include "doctor/partition/resctrl.h"
#include "ranks/binding.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto cpus = so::parse_cpu_list(text)) {
    if (so::parse_cpu_list(so::list_of(*cpus)) != *cpus) __builtin_trap();
  }
  for (const so::SchemataLine& line : so::parse_schemata(text)) {
    const auto again = so::parse_schemata(so::schemata_text(line));
    if (again.size() != 1 || so::schemata_text(again[0]) != so::schemata_text(line)) __builtin_trap();
  }
  so::value_after(text, "Cpus_allowed_list");
  so::chosen_word(text);
  const auto speed = so::parse_link_speed(text);
  if (speed && !(*speed > 0)) __builtin_trap();
  so::parse_hex(text);
  for (const std::string_view line : so::lines_of(text))
    for (const std::string_view word : so::words_of(line))
      if (word.empty()) __builtin_trap();
  return 0;
}
