#include "model/decoder/token_mixer.h"

#include "base/error.h"
#include "model/decoder/attention_block.h"
#include "model/decoder/delta_block.h"
#include "model/decoder/latent_block.h"
#include "model/decoder/state_space_block.h"

namespace so {

std::unique_ptr<const MixerBlock> make_token_mixer(const DecoderContext& context, std::int64_t layer) {
  switch (context.spec.layer(layer).mixer) {
    case TokenMixer::attention:
      return std::make_unique<AttentionBlock>(context, layer);
    case TokenMixer::gated_delta:
      return std::make_unique<DeltaBlock>(context, layer);
    case TokenMixer::latent:
      return std::make_unique<LatentBlock>(context, layer);
    case TokenMixer::state_space:
      return std::make_unique<StateSpaceBlock>(context, layer);
    case TokenMixer::none:
      return nullptr;
  }
  SO_BUG("the mixer of layer {}", layer);
}

}  // namespace so
