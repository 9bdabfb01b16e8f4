// The YAML file of a run's options: any bytes. Only Error may come out, and what is accepted can be printed as such a
// file and read again.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "options/run_file.h"
#include "options/train_options.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace so;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const OptionTable<TrainOptions>& table = train_option_table();
  TrainOptions options, again;
  OptionOrigins origins, origins_again;
  std::string printed;
  try {
    apply_run_text(text, "run.yaml", table.ref(options), origins);
    printed = run_file_text(table.view(options), origins);
  } catch (const Error& error) {
    SO_CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos, "{}", error.what());
    return 0;
  }
  for (const OptionSpec& spec : table.specs()) check_value(spec, table.view(options).get(spec), spec.name);
  apply_run_text(printed, "printed.yaml", table.ref(again), origins_again);
  SO_CHECK(to_json(table.view(again)) == to_json(table.view(options)), "printed and read again: {}", printed);
  return 0;
}
