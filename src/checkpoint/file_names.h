// The files that a checkpoint holds beside its Hugging Face model and trainer_state.json; checkpoint.h says which is
// when.
#pragma once

#include <string_view>

namespace so {

inline constexpr const char* master_file = "master.safetensors";             // fp32 weights
inline constexpr const char* first_moment_file = "exp_avg.safetensors";      // AdamW's
inline constexpr const char* second_moment_file = "exp_avg_sq.safetensors";  // likewise

// A tensor of 8-bit moments has their blocks' scales beside it, under its name with this behind.
inline constexpr std::string_view moment_scales_suffix = ".moment_scales";

// A model under construction inside the directory that it is for: of a run, and of `init`.
inline constexpr const char* export_directory = "export";
inline constexpr const char* init_directory = "init";

// The key in a checkpoint file's "__metadata__" that holds the checkpoint's step.
inline constexpr const char* step_metadata = "step";

}  // namespace so
