// A model's config.json: any bytes. Only Error may come out, on one line; and of what is accepted, everything that is
// later computed from the spec alone must be possible.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "model/config.h"
#include "model/flops.h"
#include "model/parameters.h"
#include "model/rope.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace so;
  DecoderSpec spec;
  try {
    spec = read_decoder_spec(std::string_view(reinterpret_cast<const char*>(data), size), "config.json");
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
    rope_table(spec.rope, 3);
  }
  if (spec.layers <= 4) {
    const ParameterLayout layout(make_parameters(spec));
    SO_CHECK(layout.parameter_elements() == parameter_count(spec) && layout.elements() >= layout.parameter_elements(),
             "{} elements", layout.elements());
    make_parameter_index(spec, layout);
  }
  return 0;
}
