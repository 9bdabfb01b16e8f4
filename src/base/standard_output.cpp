#include "base/standard_output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>

#include "base/character.h"
#include "base/terminal.h"

namespace so {
namespace {

void write_to_output(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size())
    throw std::system_error(errno, std::generic_category(), "standard output");
}

}  // namespace

void print_exactly(std::string_view text) {
  if (::isatty(STDOUT_FILENO) == 1)
    write_to_output(printable_text(text));
  else
    write_to_output(text);
}

void print_json(std::string_view json) {
  std::string line;
  while (!json.empty()) {
    const Character c = first_character(json);
    if (c.valid && c.code != '\n' && steers_terminal(c))
      line += fmt::format("\\u{:04x}", c.code);
    else
      line += json.substr(0, c.bytes);
    json.remove_prefix(c.bytes);
  }
  write_to_output(line += '\n');
}

}  // namespace so
