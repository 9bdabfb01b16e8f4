# What `cmake --install` writes: PREFIX/bin/superoffload (installed where it is declared), documents and recipes. The
# program finds nothing by its own path, since model presets and hardware profiles are compiled into it, so the installed
# tree can be moved as a whole.
include(GNUInstallDirs)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)  # cuDNN and CUDA may lie outside the loader's default folders
install(FILES README.md LICENSE CONTRIBUTING.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md" PATTERN "*.png")
install(DIRECTORY recipes DESTINATION ${CMAKE_INSTALL_DATADIR}/superoffload USE_SOURCE_PERMISSIONS)
# What shells and man know of the program, which prints it.
foreach(pair "bash:share/bash-completion/completions/superoffload" "zsh:share/zsh/site-functions/_superoffload"
        "man:share/man/man1/superoffload.1")
  string(REPLACE ":" ";" pair ${pair})
  list(GET pair 0 shell)
  list(GET pair 1 file)
  install(CODE "
    set(file \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${file})
    get_filename_component(folder \${file} DIRECTORY)
    file(MAKE_DIRECTORY \${folder})
    execute_process(COMMAND $<TARGET_FILE:superoffload> completion ${shell} OUTPUT_FILE \${file} COMMAND_ERROR_IS_FATAL ANY)
    message(STATUS \"Installing: \${file}\")")
endforeach()
