// cuDNN is not linked but loaded when a GPU is about to be used, from where load_library() finds it. cudnn_library.cpp
// defines the functions of it that are called here and by cudnn-frontend, each of which calls the library's.
#pragma once

#include <string>

namespace so {

// Loads the library once, from any thread, and keeps it; before it NVRTC, by which it compiles kernels. Returns why it
// cannot be loaded, is too old, or lacks a function; empty: cuDNN's functions may be called.
const std::string& why_no_cudnn();

}  // namespace so
