// What a command needs of a repository of the Hugging Face hub that an option names.
#pragma once

#include <cstdint>

namespace so {

// Of a model its config.json alone, the tokenizer's files too, or all; of a data set its data. `none`: the option names
// no repository.
enum class HubUse : std::uint8_t { none, config, small_files, weights, data };

}  // namespace so
