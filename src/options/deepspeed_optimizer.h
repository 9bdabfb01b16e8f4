// What a DeepSpeed configuration says of its optimizer, for superoffload.AdamW, by the table of --deepspeed_config.
#pragma once

#include <string>
#include <string_view>

namespace so {

// Returns the arguments of superoffload.AdamW as a JSON object. Looked at are "optimizer", "gradient_clipping",
// "zero_optimization.offload_optimizer" and the sections of number formats. "auto" and null leave an argument out; what
// is absent means what it means in DeepSpeed: no clipping, no weight decay, no offload. Of the `cpus` that may be used,
// cpuadam_cores_perc makes "threads". Throws Error as apply_deepspeed_text() does.
std::string deepspeed_optimizer(std::string_view text, std::string_view name, int cpus);

}  // namespace so
