#include "commands/inference/answer_options.h"

#include "options/option_groups.h"

namespace so {
namespace {

OptionTable<AnswerOptions> make_rows() {
  using namespace default_from;
  using O = AnswerOptions;
  OptionTable<O> t;
  t.add("temperature", &O::temperature, "Softmax temperature")
      .at_least(1e-6)
      .at_most(1e6)
      .or_else(0.0, "greedy")
      .default_from(ours);
  t.add("top_k", &O::top_k, "Sample from the N most probable tokens")
      .at_least(1)
      .or_else(std::int64_t{0}, "all")
      .default_from(ours);
  t.add("top_p", &O::top_p, "Sample from the fewest tokens that reach this probability")
      .above(0)
      .at_most(1)
      .default_from("GenerationConfig");
  t.add("seed", &O::seed, "Seed of the sampling").at_least(0).default_from("TrainingArguments");
  return t;
}

}  // namespace

SamplingOptions sampling_of(const AnswerOptions& options) {
  return {options.temperature.value_or(0), options.top_k.value_or(0), options.top_p};
}

const OptionTable<AnswerOptions>& answer_rows() {
  static const OptionTable<AnswerOptions> rows = make_rows();
  return rows;
}

}  // namespace so
