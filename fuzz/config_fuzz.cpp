// A model's config.json: any bytes. Only Error may come out, on one line; and of what is accepted, everything that is
// later computed from the spec alone must be possible.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "base/error.h"
#include "model/config.h"
#include "model/flops.h"
#include "model/model_dtype.h"
#include "model/parameters.h"
#include "model/rope.h"
#include "model/stored_names.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace so;
  DecoderSpec spec;
  try {
    const std::string text(reinterpret_cast<const char*>(data), size);
    spec = read_decoder_spec(text, "config.json");
    model_dtype({}, text, "config.json");
  } catch (const Error& error) {
    SO_CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos, "{}", error.what());
    return 0;
  }
  SO_CHECK(matmul_parameters(spec) > 0, "{} parameters", matmul_parameters(spec));
  const std::int32_t document[] = {0, 1 << 20};
  SO_CHECK(model_flops(spec, document) > 0, "{} FLOPs", model_flops(spec, document));
  if (spec.head_dim <= 256) {  // larger is allowed, and slow
    for (const std::int64_t positions : {std::int64_t{1}, std::numeric_limits<std::int64_t>::max()})
      for (const float frequency : rope_frequencies(spec.rope, positions))
        SO_CHECK(std::isfinite(frequency), "{} for {} positions", frequency, positions);
    rope_table(spec, 3);
  }
  if (spec.layers <= 4) {
    const ParameterLayout layout(make_parameters(spec));
    SO_CHECK(layout.parameter_elements() == parameter_count(spec) && layout.elements() >= layout.parameter_elements(),
             "{} elements", layout.elements());
    make_parameter_index(spec, layout);
    for (const StoredNames& names : possible_names(spec))
      for (const Parameter& p : layout.parameters())
        SO_CHECK(names.parameter(names.stored(p.name)) == p.name && !names.carries(names.stored(p.name)), "{}", p.name);
  }
  return 0;
}
