# Everything here is a Debian 12 / Ubuntu 24.04 package; scripts/install_dependencies.sh names them with their reasons.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(simdjson REQUIRED)
find_package(CLI11 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(hwloc REQUIRED IMPORTED_TARGET hwloc)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)

# Looked up by hand: the distributions' dnnl-config.cmake asks for OpenCL development files that we do not need.
find_path(SO_DNNL_INCLUDE oneapi/dnnl/dnnl.h REQUIRED)
find_library(SO_DNNL_LIBRARY dnnl REQUIRED)
add_library(so_dnnl INTERFACE)
target_include_directories(so_dnnl SYSTEM INTERFACE ${SO_DNNL_INCLUDE})
target_link_libraries(so_dnnl INTERFACE ${SO_DNNL_LIBRARY})
