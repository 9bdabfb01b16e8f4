// Olmo3ForCausalLM: OLMo 2 with a sliding window on three of four layers. Those rotate plainly; the scaling of the
// rotation, YaRN in the published models, is the other layers'.
#include "model/config.h"
#include "model/families/family.h"

namespace so {
namespace {

void read(ConfigReader& config, DecoderSpec& spec) {
  read_olmo(config, spec);
  if (config.is_null("sliding_window"))
    config.refuse("sliding_window", "null is not supported; the layers that are to see all have 'full_attention'");
  read_windows(config, spec, config.positive_int("sliding_window", 4096),
               [](const ConfigReader&, std::int64_t layer) { return (layer + 1) % 4 != 0; });
}

}  // namespace

const Family olmo3_family{.architecture = "Olmo3ForCausalLM",
                          .model_type = "olmo3",
                          .names = olmo_tensor_names(),
                          .read = read,
                          .rms_norm_eps = 1e-5,
                          .rope_theta = 500000,
                          .local_theta_key = "rope_theta",
                          .local_rope_theta = 500000};

}  // namespace so
