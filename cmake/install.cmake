# What `cmake --install` writes: PREFIX/bin/superoffload (installed where it is declared), documents and recipes. The
# program finds nothing by its own path, since model presets and hardware profiles are compiled into it, so the installed
# tree can be moved as a whole.
include(GNUInstallDirs)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)  # cuDNN and CUDA may lie outside the loader's default folders
install(FILES README.md LICENSE CONTRIBUTING.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md")
install(DIRECTORY recipes DESTINATION ${CMAKE_INSTALL_DATADIR}/superoffload USE_SOURCE_PERMISSIONS)
