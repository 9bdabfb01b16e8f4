# The Python programs of src/data as strings of the program, so that it needs no files beside the binary.
# so_write_python_program(NAME FILE OUT): writes the source file OUT, which defines so::NAME(), the text of
# src/data/FILE.py, as src/data/python_programs.h declares it.
function(so_write_python_program name file out)
  set(source ${PROJECT_SOURCE_DIR}/src/data/${file}.py)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
  file(READ ${source} text)
  file(CONFIGURE OUTPUT ${out} @ONLY CONTENT
    "// Generated from src/data/@file@.py by cmake/python_programs.cmake.\n#include \"data/python_programs.h\"\n\nnamespace so {\nstd::string_view @name@() {\n  return R\"program(@text@)program\";\n}\n}  // namespace so\n")
endfunction()
