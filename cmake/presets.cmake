# configs/models/*.json as strings of the program, so that a preset needs no file beside the binary.
# so_write_presets(OUT): writes the source file OUT, which defines so::presets() of src/model/presets.h.
function(so_write_presets out)
  file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/configs/models/*.json)
  list(SORT files)
  set(rows "")
  foreach(file IN LISTS files)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    get_filename_component(name ${file} NAME)
    string(REGEX REPLACE "\\.json$" "" name ${name})
    file(READ ${file} json)
    string(APPEND rows "    {\"${name}\", R\"preset(${json})preset\"},\n")
  endforeach()
  file(CONFIGURE OUTPUT ${out} @ONLY CONTENT
    "// Generated from configs/models by cmake/presets.cmake.\n#include \"model/presets.h\"\n\nnamespace so {\nnamespace {\nconstexpr Preset table[] = {\n@rows@};\n}\nstd::span<const Preset> presets() { return table; }\n}\n")
endfunction()
