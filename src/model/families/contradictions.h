// Keys of a config.json that say different things of the same model.
#pragma once

#include "model/config.h"
#include "model/families/family.h"

namespace so {

// Throws Error that names both keys where one setting stands under two names with two values (num_experts and
// num_local_experts, dtype and torch_dtype), where model_type is another family's than the architecture, or where the
// stored type is none that this program reads. Guessing which one is meant would train another model than the file's.
void require_consistent(const ConfigReader& config, const Family& family);

}  // namespace so
