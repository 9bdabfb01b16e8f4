# so_compile_options: what every target of the project compiles and links with.
add_library(so_compile_options INTERFACE)
get_filename_component(so_sources ${CMAKE_CURRENT_LIST_DIR}/../src ABSOLUTE)  # of tests/aarch64 too
target_include_directories(so_compile_options INTERFACE ${so_sources})
target_compile_definitions(so_compile_options INTERFACE SO_VERSION="${PROJECT_VERSION}")
set(warnings -Wall -Wextra -Wshadow -Wno-missing-field-initializers)
if(SO_UNITY)
  # A name of another source's unnamed namespace is no danger, and what g++ sees in an included source is in no header.
  list(APPEND warnings -Wno-shadow $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endif()
# The optimizer's results must not depend on what a compiler likes to contract: fused multiply-adds are written out.
target_compile_options(so_compile_options INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:${warnings};-Wpedantic;-Wnon-virtual-dtor;-ffp-contract=off>)
if(SO_HAVE_CUDA)
  string(JOIN "," host_warnings ${warnings})
  # fmt takes its constexpr away under nvcc, which then fails on its consteval.
  target_compile_options(so_compile_options INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${host_warnings};-DFMT_USE_CONSTEXPR=1;-lineinfo>)
endif()
target_link_libraries(so_compile_options INTERFACE Threads::Threads)

# Highway compiles a kernel once for each instruction set. On x86-64 these are enough: the baseline for any machine, AVX2,
# and AVX-512; the others would be the same code for our kernels. A value for HWY_DISABLED_TARGETS.
set(so_highway_disabled "HWY_SSSE3|HWY_SSE4|HWY_AVX3_DL")
if(SO_SANITIZE MATCHES thread)  # threads meet in the same places whatever the instructions between
  string(APPEND so_highway_disabled "|HWY_AVX3")
endif()
set(so_highway_disabled "(${so_highway_disabled})")

if(SO_SANITIZE)
  # -O1 takes half the time to compile, and makes clearer reports.
  target_compile_options(so_compile_options INTERFACE -O1 -fsanitize=${SO_SANITIZE} -fno-sanitize-recover=all
    -fno-omit-frame-pointer)
  # These two take a quarter of the time to compile, and the program ends at a null pointer without them.
  if(SO_SANITIZE MATCHES undefined)
    target_compile_options(so_compile_options INTERFACE -fno-sanitize=null,vptr)
  endif()
  target_link_options(so_compile_options INTERFACE -fsanitize=${SO_SANITIZE})
  # Tests start some thousands of processes. Each would first relocate a million addresses, most of them in
  # descriptions of global variables, which is a quarter of such a start.
  if(SO_SANITIZE MATCHES address AND CMAKE_SYSTEM_PROCESSOR STREQUAL x86_64)
    target_link_options(so_compile_options INTERFACE -no-pie)
  endif()
  # LLVM's linker, where it is installed, takes a fraction of the time of ld.
  find_program(SO_LLD ld.lld)
  mark_as_advanced(SO_LLD)
  if(SO_LLD)
    target_link_options(so_compile_options INTERFACE -fuse-ld=lld)
  endif()
endif()
# The property is set by so_cold(), and for tests (tests/CMakeLists.txt), most of whose time goes into GoogleTest's
# macros and JSON. Without optimization they compile in half of the time.
target_compile_options(so_compile_options INTERFACE
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:$<TARGET_PROPERTY:SO_UNOPTIMIZED>>>:-O0>)

# so_cold(TARGET): cold rooms, bench/ and fuzz/ are not optimized in builds that only test.
function(so_cold target)
  if(NOT SO_OPTIMIZE_COLD)
    set_target_properties(${target} PROPERTIES SO_UNOPTIMIZED ON)
  endif()
endfunction()
