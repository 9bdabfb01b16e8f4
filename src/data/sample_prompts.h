// The prompts of --sample_prompts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/model_encoder.h"

namespace so {

struct SamplePrompt {
  std::string where;  // it stands: "prompts.txt:3"
  std::string text;   // all that the model reads
  std::vector<std::int32_t> ids;
};

// Reads a file of prompts, one a line; or, if its first character is { or [, of records: {"messages"} and {"prompt"}
// become a conversation in the model's chat template, whose next turn is to be generated, {"instruction"} the Alpaca
// template, and {"text"} is continued as it is. Answers that the records have ("completion", "output") are left out.
// Throws Error naming the file and line of what is none of these, of a conversation that ends with an answer, and of a
// prompt without a token.
std::vector<SamplePrompt> read_sample_prompts(const std::filesystem::path& file, const ModelEncoder& encoder);

}  // namespace so
