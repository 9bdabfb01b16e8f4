// The files of page/ as strings of the program (cmake/report_page.cmake).
#pragma once

#include <string_view>

namespace so::page_text {

extern const std::string_view html, style, charts, page;

}  // namespace so::page_text
