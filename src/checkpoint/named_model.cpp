#include "checkpoint/named_model.h"

#include <utility>

#include "base/file_system.h"
#include "checkpoint/directory_dtype.h"
#include "checkpoint/source_model.h"
#include "model/config.h"
#include "model/model_dtype.h"

namespace so {

NamedModel read_named_model(const std::string& name, Precision dtype) {
  ModelConfig config = resolve_config(name);
  DecoderSpec spec = read_decoder_spec(config.text, config.origin);
  if (is_directory_path(name)) spec = with_expert_names(std::move(spec), name);
  const DType own = is_directory_path(name) ? directory_dtype(asked_dtype(dtype), name)
                                            : model_dtype(asked_dtype(dtype), config.text, config.origin);
  return {std::move(config), std::move(spec), own};
}

}  // namespace so
