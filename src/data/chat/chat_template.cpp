#include "data/chat/chat_template.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "base/hash.h"
#include "data/python_programs.h"
#include "data/tokenizer/json_reader.h"

namespace so {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t max_template_bytes = 4 << 20, max_config_bytes = 64'000'000;
constexpr std::array named_tokens = {"bos_token", "eos_token", "unk_token", "sep_token",
                                     "pad_token", "cls_token", "mask_token"};

// The templates that the program has (docs/data.md).
struct OwnTemplate {
  std::string_view name, text;
  std::array<const char*, 2> tokens;
};
constexpr std::array own_templates = {OwnTemplate{"chatml",
                                                  R"({%- if tools or messages | selectattr('tool_calls') | list %}
{{- raise_exception('chatml has no form for tools; give a template that has one') }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- endif %}
)",
                                                  {"<|im_start|>", "<|im_end|>"}},
                                      OwnTemplate{"alpaca",
                                                  R"({%- if tools or messages | selectattr('tool_calls') | list %}
{{- raise_exception('alpaca has no form for tools; give a template that has one') }}
{%- endif %}
{%- if messages[0].role == 'system' %}
{{- messages[0].content + '\n\n' }}
{%- else %}
{{- 'Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}
{{- '### Instruction:\n' + message.content + '\n\n' }}
{%- elif message.role == 'assistant' %}
{{- '### Response:\n' + message.content + eos_token }}
{%- if not loop.last %}
{{- '\n\n' }}
{%- endif %}
{%- elif message.role != 'system' or not loop.first %}
{{- raise_exception('alpaca has no form for the role ' + message.role + ' here') }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '### Response:\n' }}
{%- endif %}
)",
                                                  {}}};

using NamedTemplates = std::map<std::string, std::string>;

NamedTemplates template_files(const fs::path& directory) {
  NamedTemplates found;
  if (const fs::path file = directory / "chat_template.jinja"; path_exists(file))
    found["default"] = read_text_file(file, max_template_bytes);
  const fs::path others = directory / "additional_chat_templates";
  if (is_directory_path(others))
    for (const fs::path& file : entries_of(others))
      if (file.extension() == ".jinja") found[file.stem().string()] = read_text_file(file, max_template_bytes);
  return found;
}

NamedTemplates templates_in(const JsonNode& node) {
  NamedTemplates found;
  if (node.is_null()) return found;
  if (!node.is_array()) {
    found["default"] = node.string();
    return found;
  }
  std::size_t index = 0;
  for (const JsonElement element : node.array()) {
    const JsonNode entry = node.element(element, index++);
    found[std::string(entry.at("name").string())] = entry.at("template").string();
  }
  return found;
}

// A token is a text or {"content": TEXT}.
std::optional<std::string> token_text(const JsonNode& node) {
  if (node.is_object()) return std::string(node.at("content").string());
  if (node.is_string()) return std::string(node.string());
  return std::nullopt;
}

// special_tokens_map.json counts only where tokenizer_config.json has no table of added tokens: an older version wrote
// both then, and the former was the one to say.
void read_variables(const fs::path& directory, ChatTemplate& found) {
  std::map<std::string, std::string> tokens;
  bool has_table = false;
  for (const std::string_view name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const fs::path path = directory / name;
    if (has_table || !path_exists(path)) continue;
    const std::string file = printable_path(path);
    simdjson::dom::parser parser;
    const JsonNode root = parse_json(parser, read_text_file(path, max_config_bytes), file);
    has_table = root.find("added_tokens_decoder").has_value();
    for (const std::string_view key : named_tokens)
      if (const auto node = root.find(key))
        if (const auto text = token_text(*node)) tokens[std::string(key)] = *text;
  }
  found.variables.assign(tokens.begin(), tokens.end());
}

}  // namespace

std::uint64_t ChatTemplate::fingerprint() const {
  std::uint64_t hash = so::fingerprint(chat_program());
  const auto add = [&hash](std::string_view part) { hash = hash_text(fmt::format("{}:{}", part.size(), part), hash); };
  add(text);
  add(tool_text.value_or("none"));
  for (const auto& [name, value] : variables) {
    add(name);
    add(value);
  }
  for (const auto* list : {&special_tokens, &stop_tokens}) {
    for (const std::string& token : *list) add(token);
    add("");
  }
  return hash;
}

std::optional<ChatTemplate> find_chat_template(const fs::path& directory) {
  ChatTemplate found;
  found.source = printable_path(directory / "chat_template.jinja");
  NamedTemplates templates = template_files(directory);
  const fs::path config = directory / "tokenizer_config.json";
  if (templates.empty() && path_exists(config)) {
    found.source = printable_path(config);
    simdjson::dom::parser parser;
    const JsonNode root = parse_json(parser, read_text_file(config, max_config_bytes), found.source);
    if (const auto node = root.find("chat_template")) templates = templates_in(*node);
  }
  if (templates.empty()) return std::nullopt;
  const auto plain = templates.find("default"), tools = templates.find("tool_use");
  if (plain == templates.end())
    fail("{}: none of its {} chat templates is named \"default\"; name one so", found.source, templates.size());
  found.text = plain->second;
  if (tools != templates.end()) found.tool_text = tools->second;
  read_variables(directory, found);
  return found;
}

GivenTemplate given_chat_template(const std::string& value, const fs::path& directory) {
  GivenTemplate found;
  ChatTemplate& given = found.chat;
  read_variables(directory, given);
  const auto own = std::find_if(own_templates.begin(), own_templates.end(),
                                [&](const OwnTemplate& one) { return one.name == value; });
  if (own != own_templates.end()) {
    given.source = "--chat_template " + value;
    given.text = own->text;
    found.is_own = true;
    for (const char* token : own->tokens)
      if (token != nullptr) found.tokens.emplace_back(token);
    return found;
  }
  const fs::path file = value;
  given.source = printable_path(file);
  if (is_directory_path(file))
    fail("--chat_template {}: it is a directory; give the file, as its chat_template.jinja", given.source);
  if (!path_exists(file))
    fail("--chat_template {}: there is no such file; give a file of Jinja, or chatml or alpaca", given.source);
  given.text = read_text_file(file, max_template_bytes);
  if (file.extension() == ".json" || given.text.find("messages") == std::string::npos)
    fail("--chat_template {}: this is no chat template; give a text of Jinja that renders \"messages\"", given.source);
  return found;
}

}  // namespace so
