# src/data/chat/chat_templates.py as a string of the program, so that it needs no file beside the binary.
# so_write_chat_program(OUT): writes the source file OUT, which defines what src/data/chat/chat_program.h declares.
function(so_write_chat_program out)
  set(file ${PROJECT_SOURCE_DIR}/src/data/chat/chat_templates.py)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} text)
  file(CONFIGURE OUTPUT ${out} @ONLY CONTENT
    "// Generated from src/data/chat/chat_templates.py by cmake/chat_program.cmake.\n#include \"data/chat/chat_program.h\"\n\nnamespace so {\nstd::string_view chat_program() {\n  return R\"program(@text@)program\";\n}\n}  // namespace so\n")
endfunction()
