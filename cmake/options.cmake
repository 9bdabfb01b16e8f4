# so_options: what every target of the project compiles and links with.
add_library(so_options INTERFACE)
target_include_directories(so_options INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_compile_definitions(so_options INTERFACE SO_VERSION="${PROJECT_VERSION}")
target_compile_options(so_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers
  # The optimizer's results must not depend on what a compiler likes to contract: fused multiply-adds are written out.
  -ffp-contract=off)
target_link_libraries(so_options INTERFACE Threads::Threads)

if(SO_SANITIZE)
  # -O1: half the time to compile, and clearer reports.
  target_compile_options(so_options INTERFACE -O1 -fsanitize=${SO_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(so_options INTERFACE -fsanitize=${SO_SANITIZE})
endif()
if(SO_FUZZ)
  target_compile_options(so_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
