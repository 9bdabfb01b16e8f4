// Renders conversations with a chat template. Jinja2 does it, in Python processes beside this one. Published templates
// use most of the language (macros, namespaces, filters, Python's string methods), and no C++ library of Debian has all
// of it: inja is a subset; Jinja2Cpp, minja and MiniJinja's C interface are not packaged. The program is text in the
// binary and is sent through standard input, so nothing is found by a path.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/chat_template.h"

namespace so {

enum class TrainedTurns {
  assistant,  // each of the assistant's
  last,       // the assistant's last
  all,        // all of the text
  nothing,
};

struct RenderedChat {
  std::vector<std::string> pieces;    // of the text; every second one is trained, and the first is not
  std::string error;                  // why there is no text; the pieces are empty then
  std::vector<std::string> left_out;  // parts of the record that the text lacks: "tool_calls"
  std::vector<std::string> roles;     // that are read as others: "human as user"

  std::string text() const;
};

// Reads what the Python program answers. Throws Error unless it answers for `records` records.
std::vector<RenderedChat> parse_rendered(std::string_view json, std::size_t records);

// Any number of threads may render at once, each with a process of its own, which is started when it is needed and ends
// with this object.
class ChatRenderer {
 public:
  // Starts nothing.
  explicit ChatRenderer(ChatTemplate chat_template);
  ~ChatRenderer();
  ChatRenderer(const ChatRenderer&) = delete;
  ChatRenderer& operator=(const ChatRenderer&) = delete;

  const ChatTemplate& chat_template() const { return template_; }

  // `records` are the JSON texts of records that have been checked (records.h). What is wrong with one record is in its
  // result. Throws Error where Python or Jinja2 is missing (with the package's name), for a template that is not Jinja,
  // and if the process ends.
  std::vector<RenderedChat> render(std::span<const std::string_view> records, TrainedTurns trained,
                                   bool add_generation_prompt = false) const;

 private:
  struct Workers;
  ChatTemplate template_;
  std::unique_ptr<Workers> workers_;
};

}  // namespace so
