// The Python programs that are part of this one, as text, so that the binary needs no files beside it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/hash.h"

namespace so {

struct PythonModule {
  std::string_view name, text;
};
// The last module is the program, and may import those before it.
using PythonProgram = std::span<const PythonModule>;

PythonProgram chat_program();   // chat/render_chats.py renders chat templates
PythonProgram table_program();  // tables/table_records.py reads Parquet and Arrow files

inline std::uint64_t fingerprint(PythonProgram program) {
  std::uint64_t hash = 0;
  for (const PythonModule& module : program) hash = hash_text(module.text, hash);
  return hash;
}

}  // namespace so
