#include "io/yaml_strict.h"

#include <yaml.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace so {
namespace {

class StrictScan {
 public:
  StrictScan(std::string_view text, std::string_view name) : text_(text), name_(name) { find_lines(); }

  void run() {
    yaml_parser_t parser;
    if (yaml_parser_initialize(&parser) == 0) SO_BUG("yaml_parser_initialize");
    const struct Closer {
      yaml_parser_t* parser;
      ~Closer() { yaml_parser_delete(parser); }
    } closer{&parser};
    yaml_parser_set_input_string(&parser, reinterpret_cast<const unsigned char*>(text_.data()), text_.size());
    while (true) {
      yaml_token_t token;
      if (yaml_parser_scan(&parser, &token) == 0) return;
      const struct TokenCloser {
        yaml_token_t* token;
        ~TokenCloser() { yaml_token_delete(token); }
      } token_closer{&token};
      if (token.type == YAML_STREAM_END_TOKEN || token.type == YAML_NO_TOKEN) return;
      check(token);
    }
  }

 private:
  template <class... Args>
  [[noreturn]] void refuse(std::size_t line, fmt::format_string<Args...> text, Args&&... args) const {
    fail("{}:{}: not YAML: {}", name_, line + 1, fmt::format(text, std::forward<Args>(args)...));
  }

  // Lines end as in YAML 1.2. libyaml counts characters, not bytes.
  void find_lines() {
    line_starts_.push_back(0);
    for (std::size_t i = 0; i < text_.size(); ++i) {
      if ((static_cast<unsigned char>(text_[i]) & 0xc0) != 0x80) offsets_.push_back(static_cast<std::uint32_t>(i));
      if (text_[i] == '\n' || (text_[i] == '\r' && text_.substr(i + 1, 1) != "\n")) line_starts_.push_back(i + 1);
      const bool next_line = text_.substr(i, 2) == "\xc2\x85", separator = text_.substr(i, 3) == "\xe2\x80\xa8";
      if (next_line || separator || text_.substr(i, 3) == "\xe2\x80\xa9")
        refuse(line_starts_.size() - 1, "U+{} would end the line in YAML 1.1; in double quotes write it as \"\\u{}\"",
               next_line   ? "0085"
               : separator ? "2028"
                           : "2029",
               next_line   ? "0085"
               : separator ? "2028"
                           : "2029");
    }
  }

  char char_at(std::size_t index) const { return index < offsets_.size() ? text_[offsets_[index]] : '\0'; }
  std::string_view line_text(std::size_t line) const {
    const std::size_t begin = line_starts_.at(line);
    const std::size_t end = line + 1 < line_starts_.size() ? line_starts_[line + 1] : text_.size();
    return text_.substr(begin, end - begin);
  }
  static bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\n") == line.npos; }
  static int spaces(std::string_view line) {
    return static_cast<int>(std::min(line.find_first_not_of(' '), line.size()));
  }
  int block_indent() const { return block_indents_.empty() ? -1 : block_indents_.back(); }

  void check(const yaml_token_t& token) {
    switch (token.type) {
      case YAML_VERSION_DIRECTIVE_TOKEN:
      case YAML_TAG_DIRECTIVE_TOKEN:
        if (in_document_)
          refuse(token.start_mark.line, "a line that begins with % is a directive, and none stands behind content");
        break;
      case YAML_STREAM_START_TOKEN:
        return;
      case YAML_DOCUMENT_END_TOKEN:
        in_document_ = false;
        break;
      case YAML_BLOCK_SEQUENCE_START_TOKEN:
      case YAML_BLOCK_MAPPING_START_TOKEN:
        block_indents_.push_back(static_cast<int>(token.start_mark.column));
        check_depth(token);
        return;
      case YAML_BLOCK_END_TOKEN:
        if (!block_indents_.empty()) block_indents_.pop_back();
        return;
      case YAML_FLOW_SEQUENCE_START_TOKEN:
      case YAML_FLOW_MAPPING_START_TOKEN:
        if (flow_depth_++ == 0) flow_begin_ = token.start_mark.line;
        in_document_ = true;
        check_depth(token);
        break;
      case YAML_FLOW_SEQUENCE_END_TOKEN:
      case YAML_FLOW_MAPPING_END_TOKEN:
        if (flow_depth_ > 0 && --flow_depth_ == 0) check_flow_lines(token);
        break;
      case YAML_SCALAR_TOKEN:
        in_document_ = true;
        if (check_scalar(token)) return;
        break;
      default:
        in_document_ = true;
    }
    if (token.end_mark.index > token.start_mark.index && char_at(token.end_mark.index) == '#')
      refuse(token.end_mark.line, "a comment needs a space before its #");
  }

  void check_depth(const yaml_token_t& token) const {
    if (block_indents_.size() + flow_depth_ > static_cast<std::size_t>(max_yaml_depth))
      refuse(token.start_mark.line, "nested deeper than {} levels", max_yaml_depth);
  }

  // Returns whether a # behind the token belongs to it.
  bool check_scalar(const yaml_token_t& token) const {
    const yaml_scalar_style_t style = token.data.scalar.style;
    if (style == YAML_PLAIN_SCALAR_STYLE) {
      if (token.data.scalar.length == 1 && token.data.scalar.value[0] == '-')
        refuse(token.start_mark.line, "a - alone is no value; put it in quotes");
      return true;
    }
    if (style == YAML_LITERAL_SCALAR_STYLE || style == YAML_FOLDED_SCALAR_STYLE) {
      check_block_scalar(token);
      return true;
    }
    for (std::size_t line = token.start_mark.line + 1; line <= token.end_mark.line; ++line)
      if (const std::string_view text = line_text(line); !is_blank(text) && spaces(text) <= block_indent())
        refuse(line,
               "this line belongs to the text in quotes that begins in line {}, and must be indented more; is a quote "
               "missing there?",
               token.start_mark.line + 1);
    return false;
  }

  // The closing bracket may stand under the name that the list belongs to, as nearly all programs read it.
  void check_flow_lines(const yaml_token_t& token) const {
    for (std::size_t line = flow_begin_ + 1; line <= token.end_mark.line; ++line) {
      const std::string_view text = line_text(line);
      const int indent = spaces(text);
      if (is_blank(text) || text.substr(text.find_first_not_of(" \t"), 1) == "#" || indent > block_indent()) continue;
      if (line == token.start_mark.line && static_cast<int>(token.start_mark.column) == indent &&
          indent == block_indent())
        continue;
      refuse(line, "this line belongs to the brackets that open in line {}, and must be indented more",
             flow_begin_ + 1);
    }
  }

  void check_block_scalar(const yaml_token_t& token) const {
    std::size_t at = token.start_mark.index + 1;
    bool has_indent = false;
    for (char c = char_at(at); c == '+' || c == '-' || (c >= '0' && c <= '9'); c = char_at(++at))
      has_indent = has_indent || (c >= '0' && c <= '9');
    if (char_at(at) == '#') refuse(token.start_mark.line, "a comment needs a space before its #");
    if (has_indent) return;
    int most = 0;
    std::size_t widest = 0;
    for (std::size_t line = token.start_mark.line + 1; line < line_starts_.size(); ++line) {
      const std::string_view text = line_text(line);
      const int indent = spaces(text);
      if (text.find_first_not_of(" \r\n") == text.npos) {
        const int blanks = static_cast<int>(std::min(text.find_first_of("\r\n"), text.size()));
        if (blanks > most) {
          most = blanks;
          widest = line;
        }
        continue;
      }
      if (indent > block_indent() && most > indent)
        refuse(widest, "this blank line is indented more than the text behind it");
      return;
    }
  }

  const std::string_view text_;
  const std::string_view name_;
  std::vector<std::uint32_t> offsets_;    // of each character
  std::vector<std::size_t> line_starts_;  // offsets
  std::vector<int> block_indents_;
  std::size_t flow_depth_ = 0, flow_begin_ = 0;
  bool in_document_ = false;
};

}  // namespace

void check_strict_yaml(std::string_view text, std::string_view name) { StrictScan(text, name).run(); }

}  // namespace so
