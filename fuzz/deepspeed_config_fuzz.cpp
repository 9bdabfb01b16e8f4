// The DeepSpeed file: any bytes, and a number of ranks from the first of them. Only Error may come out.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "options/deepspeed_config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace so;
  if (size == 0) return 0;
  const int ranks = 1 + data[0] % 8;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  TrainOptions options;
  OptionOrigins origins;
  try {
    apply_deepspeed_text(text, "ds.json", ranks, options, origins);
  } catch (const Error& error) {
    // Messages are one line, whatever the input holds.
    SO_CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos, "{}", error.what());
    return 0;
  }
  // Accepted values are within every row's range, and can be recorded and compared.
  const OptionsView view = train_option_table().view(options);
  for (const OptionSpec& spec : train_option_table().specs()) check_value(spec, view.get(spec), spec.name);
  SO_CHECK(result_differences(view, to_json(view), "record").empty(), "a record differs from its own options");
  settings_log(view, origins);
  return 0;
}
