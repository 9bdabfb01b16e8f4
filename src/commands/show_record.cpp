#include "commands/show_record.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "base/terminal.h"

namespace so {
namespace {

constexpr std::string_view green = "\033[30;42m", plain = "\033[0m";

// The colour ends with each line, since some terminals would fill the rest of the line with it.
std::string colored(std::string_view text) {
  std::string out;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) out += std::string(green) + std::string(text.substr(begin, end - begin)) + std::string(plain);
    if (end < text.size()) out += "\n";
    begin = end + 1;
  }
  return out;
}

}  // namespace

bool use_color(ColorUse choice) {
  if (choice != ColorUse::automatic) return choice == ColorUse::always;
  const char* no_color = std::getenv("NO_COLOR");  // no-color.org: any value but an empty one
  const char* terminal = std::getenv("TERM");
  return (no_color == nullptr || *no_color == '\0') && terminal != nullptr && std::string_view(terminal) != "dumb" &&
         ::isatty(STDOUT_FILENO) == 1;
}

std::vector<bool> trained_tokens(const Example& example) {
  std::vector<bool> trained(example.ids.size(), false);
  for (std::size_t i = 0; i + 1 < trained.size(); ++i) trained[i + 1] = example.targets[i] != kIgnored;
  return trained;
}

std::string shown_example(const Example& example, const Tokenizer& tokenizer, bool color) {
  const std::vector<bool> trained = trained_tokens(example);
  std::string shown;
  StreamDecoder decoder(tokenizer, false);
  for (std::size_t begin = 0, end = 0; begin < trained.size(); begin = end) {
    std::string text;
    for (; end < trained.size() && trained[end] == trained[begin]; ++end) text += decoder.push(example.ids[end]);
    if (end == trained.size()) text += decoder.finish();
    text = printable_text(text);
    if (trained[begin])
      shown += color ? colored(text) : "⟦" + text + "⟧";
    else
      shown += text;
  }
  if (!shown.ends_with('\n')) shown += '\n';
  return shown;
}

}  // namespace so
