// A YAML file as a tree of nodes: one document, read by libyaml, and held to the specification (1.2) where libyaml is
// lax.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace so {

// A use of a node, where an alias is one too; `line` counts from 1 and is that of the use.
struct YamlUse {
  std::size_t node = 0;
  int line = 0;
};

struct YamlNode {
  enum class Kind : std::uint8_t { scalar, list, mapping };
  Kind kind = Kind::scalar;
  std::string text;  // of a scalar
  std::string tag;   // in full, as "tag:yaml.org,2002:str"; empty without one
  bool is_plain = false;
  std::vector<YamlUse> children;  // items; of a mapping, keys and values by turns
};

struct YamlDocument {
  bool is_empty = true;  // nothing but comments
  YamlUse root;
  std::vector<YamlNode> nodes;  // an alias names the node of its anchor, so no node is there twice

  const YamlNode& at(YamlUse use) const { return nodes.at(use.node); }
};

// `text` must be UTF-8. Throws Error, which names the file `name` and the line, for what is no YAML, for nesting deeper
// than 32 levels, for a second document, and for an alias whose anchor does not stand before it.
YamlDocument read_yaml(std::string_view text, std::string_view name);

// A scalar for such a file, in quotes where it needs them. `text` must be UTF-8.
std::string yaml_scalar(std::string_view text);

}  // namespace so
