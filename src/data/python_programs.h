// The Python programs that are part of this one, as text.
#pragma once

#include <string_view>

namespace so {

std::string_view chat_program();   // chat/render_chats.py renders chat templates
std::string_view table_program();  // tables/table_records.py reads Parquet and Arrow files

}  // namespace so
