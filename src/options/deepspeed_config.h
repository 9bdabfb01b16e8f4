// The DeepSpeed JSON of the published system, accepted as it is: every key is honoured, or has nothing to do here and
// says why, or is refused by name with the reason and the fix. Unknown keys are refused too.
//
// Format: JSON, or Hjson, which DeepSpeed reads too: //, /* */ and # comments, names without quotes. "auto" and null
// leave a value to the command line and the defaults. Keys, types and defaults are those of
// https://www.deepspeed.ai/docs/config-json/; but a key that is absent leaves our own default, not DeepSpeed's, in
// place (docs/deepspeed-config.md lists where that matters).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "options/train_options.h"

namespace so {

enum class KeyUse : std::uint8_t {
  option,   // sets the train option `option`
  special,  // checked or combined by code; `why` says how
  unused,   // any value is accepted: it cannot change results, and `why` says why it has nothing to do
  limited,  // only the values in `accepted` are: they ask for nothing; others are refused with `why`
  feature,  // an object accepted while its "enabled" is false or absent, refused otherwise with `why`
  section,  // an object whose keys are listed on their own
};

enum class JsonKind : std::uint8_t { boolean, integer, number, text, list, object, any };

struct DeepSpeedKey {
  std::string path;  // "zero_optimization.stage"
  KeyUse use = KeyUse::section;
  JsonKind kind = JsonKind::any;
  std::string option;                 // use option
  std::vector<std::string> accepted;  // use limited: JSON literals
  std::string why;
};

// Every known key, those of the option table included. Sorted by path.
std::span<const DeepSpeedKey> deepspeed_keys();

// The same as a Markdown table, for docs/deepspeed-config.md.
std::string deepspeed_keys_markdown();

// Reads `file` and sets what the command line has not set (`origins` says what it has). `ranks` is the number of
// ranks, for train_batch_size; those that split a sequence count as one of them. Throws Error for anything it does not
// accept, naming file and key; for malformed JSON also line and column. Files beyond 1 MiB and nesting beyond 32 levels
// are refused.
void apply_deepspeed_config(const std::string& file, int ranks, TrainOptions& options, OptionOrigins& origins);

// The same for a text; `name` stands for the file in messages.
void apply_deepspeed_text(std::string_view text, std::string_view name, int ranks, TrainOptions& options,
                          OptionOrigins& origins);

}  // namespace so
