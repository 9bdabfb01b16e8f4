# NCCL, which connects ranks on GPUs: SO_NCCL is AUTO (built if there is the CUDA backend and NCCL's header), ON (an error if
# not) or OFF. The program loads the library when several ranks are to use GPUs: by the loader's own search, and then
# where the build found it.
set(SO_NCCL AUTO CACHE STRING "Connect ranks on GPUs by NCCL: AUTO, ON or OFF")

set(SO_HAVE_NCCL OFF)
if(SO_NCCL AND SO_HAVE_CUDA)
  find_path(SO_NCCL_INCLUDE nccl.h HINTS ${hints} ${PROJECT_SOURCE_DIR}/.deps/nccl/include PATH_SUFFIXES include)
  find_library(SO_NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${hints} ${PROJECT_SOURCE_DIR}/.deps/nccl/lib
    PATH_SUFFIXES lib lib64)
  if(SO_NCCL_INCLUDE)
    set(SO_HAVE_NCCL ON)
    message(STATUS "NCCL: on (${SO_NCCL_INCLUDE})")
  elseif(SO_NCCL STREQUAL AUTO)
    message(STATUS "NCCL: off (nccl.h is not found; scripts/install_dependencies.sh fetches it)")
  else()
    message(FATAL_ERROR "SO_NCCL=${SO_NCCL}, but nccl.h is not found; scripts/install_dependencies.sh fetches it")
  endif()
else()
  message(STATUS "NCCL: off (SO_NCCL=${SO_NCCL}, the CUDA backend is needed)")
endif()

if(SO_HAVE_NCCL)
  # As a system's, whose warnings are not ours.
  target_include_directories(so_cuda SYSTEM INTERFACE ${SO_NCCL_INCLUDE})
endif()
