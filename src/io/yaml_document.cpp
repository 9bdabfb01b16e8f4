#include "io/yaml_document.h"

#include <fmt/format.h>
#include <yaml.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "io/yaml_strict.h"

namespace so {
namespace {

std::string_view text_of(const yaml_char_t* text) {
  return text == nullptr ? std::string_view() : std::string_view(reinterpret_cast<const char*>(text));
}

int line_of(const yaml_mark_t& mark) { return static_cast<int>(mark.line) + 1; }

class YamlReader {
 public:
  YamlReader(std::string_view text, std::string_view name) : text_(text), name_(name) {
    if (yaml_parser_initialize(&parser_) == 0) SO_BUG("yaml_parser_initialize");
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  }
  ~YamlReader() {
    yaml_event_delete(&event_);
    yaml_parser_delete(&parser_);
  }
  YamlReader(const YamlReader&) = delete;
  YamlReader& operator=(const YamlReader&) = delete;

  YamlDocument read() {
    if (next() == YAML_STREAM_START_EVENT) next();
    if (event_.type == YAML_STREAM_END_EVENT) return std::move(document_);
    document_.is_empty = false;
    next();
    document_.root = read_node();
    const int end = line_of(event_.start_mark);
    next();
    if (next() != YAML_STREAM_END_EVENT)
      fail("{}:{}: one document is read, and there is another behind \"---\"", name_,
           std::max(end, line_of(event_.start_mark)));
    return std::move(document_);
  }

 private:
  yaml_event_type_t next() {
    yaml_event_delete(&event_);
    if (yaml_parser_parse(&parser_, &event_) == 0) refuse();
    return event_.type;
  }

  // The event of now, and those of what it begins.
  YamlUse read_node() {
    const YamlUse use{document_.nodes.size(), line_of(event_.start_mark)};
    YamlNode node;
    std::string anchor;
    switch (event_.type) {
      case YAML_ALIAS_EVENT: {
        const std::string_view alias = text_of(event_.data.alias.anchor);
        const auto it = anchors_.find(alias);
        if (it == anchors_.end())
          fail("{}:{}: *{} names an anchor, and no &{} stands before it", name_, use.line, printable(alias),
               printable(alias));
        return {it->second, use.line};
      }
      case YAML_SCALAR_EVENT: {
        const auto& scalar = event_.data.scalar;
        node.text.assign(reinterpret_cast<const char*>(scalar.value), scalar.length);
        node.tag = text_of(scalar.tag);
        node.is_plain = scalar.style == YAML_PLAIN_SCALAR_STYLE;
        anchor = text_of(scalar.anchor);
        break;
      }
      case YAML_SEQUENCE_START_EVENT:
        node.kind = YamlNode::Kind::list;
        node.tag = text_of(event_.data.sequence_start.tag);
        anchor = text_of(event_.data.sequence_start.anchor);
        break;
      case YAML_MAPPING_START_EVENT:
        node.kind = YamlNode::Kind::mapping;
        node.tag = text_of(event_.data.mapping_start.tag);
        anchor = text_of(event_.data.mapping_start.anchor);
        break;
      default:
        SO_BUG("YAML event {}", static_cast<int>(event_.type));
    }
    const bool is_scalar = node.kind == YamlNode::Kind::scalar;
    document_.nodes.push_back(std::move(node));
    while (!is_scalar && next() != YAML_SEQUENCE_END_EVENT && event_.type != YAML_MAPPING_END_EVENT) {
      const YamlUse child = read_node();
      document_.nodes[use.node].children.push_back(child);
    }
    if (!anchor.empty()) anchors_[anchor] = use.node;  // only now: no node contains itself
    return use;
  }

  [[noreturn]] void refuse() const {
    const std::string_view problem = parser_.problem == nullptr ? "out of memory" : parser_.problem;
    const std::string_view context = parser_.context == nullptr ? "" : parser_.context;
    if (parser_.error == YAML_READER_ERROR) {
      const std::size_t end = std::min(parser_.problem_offset, text_.size());
      fail("{}:{}: not YAML: {}", name_,
           1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'), problem);
    }
    const int line = line_of(parser_.problem_mark), begin = line_of(parser_.context_mark);
    if (context == "while scanning a quoted scalar" && problem == "found unexpected end of stream")
      fail("{}:{}: not YAML: the quote that opens here is not closed", name_, begin);
    if (context == "while scanning a simple key")
      fail("{}:{}: not YAML: a line without \": \"; an option is its name and its value, as in \"lr: 2e-5\"", name_,
           begin);
    // Whatever is scanned is one token; the place where it begins is what a person looks for.
    const bool at_begin = context.substr(0, 14) == "while scanning" && parser_.error == YAML_SCANNER_ERROR;
    fail("{}:{}: not YAML: {}{}{}", name_, at_begin ? begin : line, problem, context.empty() ? "" : " ", context);
  }

  const std::string_view text_;
  const std::string_view name_;
  yaml_parser_t parser_{};
  yaml_event_t event_{};
  YamlDocument document_;
  std::map<std::string, std::size_t, std::less<>> anchors_;
};

// Whether a plain scalar of these characters is the text itself and nothing else.
bool is_plain_text(std::string_view text) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  if (text.empty() || !(is_letter(text[0]) || text[0] == '/' || text[0] == '_')) return false;
  for (const char c : text)
    if (!is_letter(c) && !(c >= '0' && c <= '9') && std::string_view("/_-.+=").find(c) == std::string_view::npos)
      return false;
  for (const char* special : {"null", "Null", "NULL"})
    if (text == special) return false;
  return true;
}

}  // namespace

YamlDocument read_yaml(std::string_view text, std::string_view name) {
  if (text.substr(0, 3) == "\xef\xbb\xbf") text.remove_prefix(3);
  check_strict_yaml(text, name);
  return YamlReader(text, name).read();
}

std::string yaml_scalar(std::string_view text) {
  if (is_plain_text(text)) return std::string(text);
  std::string out = "\"";
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const std::string_view two = text.substr(i, 2), three = text.substr(i, 3);
    if (c == '"' || c == '\\') {
      out += {'\\', text[i]};
    } else if (c < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", c);
    } else if (two[0] == '\xc2' && static_cast<unsigned char>(two[1]) < 0xa0) {  // U+0080 to U+009F
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(two[1]));
      i += 1;
    } else if (three == "\xe2\x80\xa8" || three == "\xe2\x80\xa9" || three == "\xef\xbb\xbf" ||
               three == "\xef\xbf\xbe" || three == "\xef\xbf\xbf") {
      out += fmt::format("\\u{:04x}", (static_cast<unsigned>(c & 0x0f) << 12) |
                                          (static_cast<unsigned>(three[1] & 0x3f) << 6) |
                                          static_cast<unsigned>(three[2] & 0x3f));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out + '"';
}

}  // namespace so
