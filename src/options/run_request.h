// The request of a run: what its options ask for, once the DeepSpeed file has been applied and the model is known. The
// planner reads this and none of the options.
#pragma once

#include <type_traits>
#include <vector>

#include "base/number_formats.h"
#include "base/option_table.h"
#include "options/option_groups.h"

namespace so {

struct RunRequest : StepOptions, AdamOptions, RankOptions {
  DType model_dtype = DType::bf16;  // as --dtype or the model's config.json says
  bool bucket_size_given = false;   // else small models have smaller buckets
  std::vector<PlanChoice> explain;  // what TrainingPlan::alternatives shall say
};

// Decides the number formats of the run that is asked for. A plan carries them from here on.
NumberFormats number_formats(const RunRequest& request);

// A command that has no options for AdamW gets train's defaults, as far as the moments' format allows.
template <class Options>
RunRequest run_request(const Options& options, const OptionOrigins& origins, DType model_dtype) {
  RunRequest request;
  static_cast<StepOptions&>(request) = options;
  if constexpr (std::is_base_of_v<AdamOptions, Options>)
    static_cast<AdamOptions&>(request) = options;
  else if constexpr (std::is_base_of_v<ClipOption, Options>)
    static_cast<ClipOption&>(request) = options;
  if constexpr (std::is_base_of_v<RankOptions, Options>) static_cast<RankOptions&>(request) = options;
  if (const double most = largest_beta2(request.optimizer_state_dtype); request.adam_beta2 > most)
    request.adam_beta2 = most;
  request.model_dtype = model_dtype;
  request.bucket_size_given = origins.given("bucket_size");
  return request;
}

}  // namespace so
