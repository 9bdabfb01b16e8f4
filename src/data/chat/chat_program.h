// The Python program that renders chat templates, as text.
#pragma once

#include <string_view>

namespace so {

std::string_view chat_program();  // chat_templates.py

}  // namespace so
