# Debian's and Ubuntu's cross compiler for 64-bit Arm, its programs run by qemu-user. SO_AARCH64_PACKAGES is a folder with
# the unpacked development packages of that architecture; scripts/test_aarch64.sh fetches them.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES SO_AARCH64_PACKAGES)
set(CMAKE_FIND_ROOT_PATH ${SO_AARCH64_PACKAGES})
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_CXX_FLAGS_INIT "-isystem ${SO_AARCH64_PACKAGES}/usr/include/aarch64-linux-gnu")
# Libraries of the libraries are found too, at link and at run time.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,--disable-new-dtags -Wl,-rpath-link,${SO_AARCH64_PACKAGES}/usr/lib/aarch64-linux-gnu")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "${CMAKE_EXE_LINKER_FLAGS_INIT}")
set(CMAKE_BUILD_RPATH ${SO_AARCH64_PACKAGES}/usr/lib/aarch64-linux-gnu)
# pkg-config sees these packages and no others, and paths in them lead there.
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${SO_AARCH64_PACKAGES})
set(ENV{PKG_CONFIG_LIBDIR}
  ${SO_AARCH64_PACKAGES}/usr/lib/aarch64-linux-gnu/pkgconfig:${SO_AARCH64_PACKAGES}/usr/share/pkgconfig)
