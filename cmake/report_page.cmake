# The page of `superoffload report` as strings of the program, so that it needs no file beside the binary.
# so_write_report_page(OUT): writes the source file OUT, which defines the texts of src/commands/report/page_text.h.
function(so_write_report_page out)
  set(texts "")
  foreach(pair html:report.html style:report.css charts:charts.js page:page.js)
    string(REPLACE ":" ";" pair ${pair})
    list(GET pair 0 name)
    list(GET pair 1 file)
    set(file ${PROJECT_SOURCE_DIR}/src/commands/report/page/${file})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    file(READ ${file} text)
    string(APPEND texts "const std::string_view ${name} = R\"page_text(${text})page_text\";\n")
  endforeach()
  file(CONFIGURE OUTPUT ${out} @ONLY CONTENT
    "// Generated from src/commands/report/page/ by cmake/report_page.cmake.\n#include \"commands/report/page_text.h\"\n\nnamespace so::page_text {\n@texts@}  // namespace so::page_text\n")
endfunction()
