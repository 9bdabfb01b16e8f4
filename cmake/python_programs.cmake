# The Python programs of src/data as strings of the program, so that it needs no files beside the binary.
# so_write_python_program(NAME OUT FILES...): writes the source file OUT, which defines so::NAME(), the text of the
# modules src/data/FILES, of which the last is the program, as src/data/python_programs.h declares it.
function(so_write_python_program name out)
  set(modules "")
  foreach(file ${ARGN})
    set(source ${PROJECT_SOURCE_DIR}/src/data/${file})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    file(READ ${source} text)
    get_filename_component(module ${file} NAME_WE)
    string(APPEND modules "      {\"${module}\", R\"program(${text})program\"},\n")
  endforeach()
  file(CONFIGURE OUTPUT ${out} @ONLY CONTENT
    "// Generated from src/data by cmake/python_programs.cmake.\n#include \"data/python_programs.h\"\n\nnamespace so {\nPythonProgram @name@() {\n  static constexpr PythonModule modules[] = {\n@modules@  };\n  return modules;\n}\n}  // namespace so\n")
endfunction()
