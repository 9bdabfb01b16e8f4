// --chat_template, which the commands that render conversations share.
#pragma once

#include <optional>
#include <string>

#include "base/option_table.h"

namespace so {

struct ChatTemplateOption {
  std::optional<std::string> chat_template;  // a file, or a template of the program's own; unset: the model's
};

const OptionTable<ChatTemplateOption>& chat_template_rows();

}  // namespace so
