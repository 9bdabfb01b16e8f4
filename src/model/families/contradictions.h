// Keys of a config.json that say different things of the same model.
#pragma once

#include <string_view>

#include "model/config.h"

namespace so {

// Throws Error that names both keys where one setting stands under two names with two values (num_experts and
// num_local_experts, dtype and torch_dtype), where model_type is not `expected_type`, that of the architecture, or
// where the stored type is none that this program reads. Guessing which one is meant would train another model than the
// file's.
void require_consistent(const ConfigReader& config, std::string_view architecture, std::string_view expected_type);

}  // namespace so
