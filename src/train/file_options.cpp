#include "train/file_options.h"

#include "train/verbosity.h"

namespace so {
namespace {

constexpr const char* ours = "this program";

OptionTable<VerifyOptions> make_verify() {
  using O = VerifyOptions;
  OptionTable<O> t;
  t.group("What to check");
  t.add("dir", &O::dir, "Model directory, checkpoint, or output directory with several; --dir itself may be left out")
      .metavar("DIR")
      .required()
      .elsewhere("model")
      .elsewhere("output_dir");
  t.group("Result");
  t.add("json", &O::json, "Print the result as one JSON object on standard output").default_from(ours);
  add_verbosity(t);
  return t;
}

}  // namespace

const OptionTable<VerifyOptions>& verify_option_table() {
  static const OptionTable<VerifyOptions> table = make_verify();
  return table;
}

void check_options(const VerifyOptions& options, const OptionOrigins&) {
  check_required(verify_option_table().view(options));
}

}  // namespace so
