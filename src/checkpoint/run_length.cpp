#include "checkpoint/run_length.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace so {
namespace {

std::int64_t steps_of(const LengthOptions& options, const BatchIterator& batches) {
  return options.max_steps ? *options.max_steps : batches.steps_in_epochs(options.num_train_epochs);
}

}  // namespace

TrainOptions with_recorded_ranks(const TrainOptions& asked, const std::string& record, const std::string& state_file) {
  const auto recorded = nlohmann::json::parse(record, nullptr, /*allow_exceptions=*/false);
  if (!recorded.is_object()) return asked;
  const auto number = [&](const char* name) {
    const auto it = recorded.find(name);
    const bool there = it != recorded.end() && it->is_number_integer() && it->get<std::int64_t>() >= 1;
    return there ? it->get<std::int64_t>() : 1;  // records of older versions know no ranks
  };
  const std::int64_t ranks = number("gpus"), micro_batches = number("gradient_accumulation_steps");
  if (ranks == asked.gpus) return asked;  // whatever else differs is said by name
  const std::int64_t in_all = ranks * micro_batches;
  if (in_all != asked.gpus * asked.gradient_accumulation_steps)
    fail(
        "{} is of a run on {} ranks with {} micro-batches each, and now there are {} ranks with {} each, so that a step "
        "would have other rows; give {}as many ranks as before",
        state_file, ranks, micro_batches, asked.gpus, asked.gradient_accumulation_steps,
        in_all % asked.gpus == 0 ? fmt::format("--gradient_accumulation_steps {}, or ", in_all / asked.gpus) : "");
  TrainOptions same = asked;
  same.gpus = static_cast<int>(ranks);
  same.gradient_accumulation_steps = micro_batches;
  return same;
}

LengthOptions recorded_length(const LengthOptions& asked, const std::string& record) {
  const auto recorded = nlohmann::json::parse(record, nullptr, /*allow_exceptions=*/false);
  if (!recorded.is_object()) return asked;
  TrainOptions options;  // the table's rows know how a value stands in a record
  for (const char* name : {"max_steps", "num_train_epochs"}) {
    const OptionSpec& spec = train_option_table().at(name);
    const auto it = recorded.find(name);
    const bool real = spec.kind == OptionKind::real;
    const bool there = it != recorded.end() && (real ? it->is_number() : it->is_number_integer());
    OptionValue value = spec.default_value;
    if (there) value = real ? OptionValue(it->get<double>()) : OptionValue(it->get<std::int64_t>());
    train_option_table().ref(options).set(spec, value);
  }
  return options;
}

RunLength run_length(const LoopOptions& options, const BatchIterator& batches, const TrainerState* resumed,
                     const std::string& state_file) {
  RunLength length;
  length.steps = steps_of(options, batches);
  length.warmup_steps = resolve_warmup_steps(options, length.steps);
  if (resumed == nullptr) return length;
  const LengthOptions before = recorded_length(options, resumed->options);
  const std::int64_t steps_before = steps_of(before, batches);
  if (steps_before > length.steps)
    fail(
        "{} is of a run of {} steps, and {} are asked for now: a run can be extended, not shortened; give the recorded "
        "--max_steps {} and --num_train_epochs {}, or start a new run in another --output_dir",
        state_file, steps_before, length.steps, before.max_steps.value_or(-1), before.num_train_epochs);
  if (resumed->warmup_steps >= 0)
    length.warmup_steps = resumed->warmup_steps;
  else
    length.warmup_steps = resolve_warmup_steps(options, steps_before);
  if (steps_before < length.steps) length.extended_from = steps_before;
  return length;
}

void require_steps_to_measure(const TrainOptions& options, std::int64_t steps) {
  if (!options.bench_steps || steps >= options.warmup_steps + *options.bench_steps) return;
  fail(
      "--bench_steps {} after --warmup_steps {} takes {} steps, and this run has {}; give fewer, or raise --max_steps or "
      "--num_train_epochs",
      *options.bench_steps, options.warmup_steps, options.warmup_steps + *options.bench_steps, steps);
}

std::string RunLength::long_warmup_text() const {
  if (warmup_steps < steps) return "";
  return fmt::format(
      "the warm-up takes {} of the run's {} step{}, so the learning rate, which rises from 0, never comes to --lr{}; give "
      "a smaller --warmup or --warmup_num_steps",
      warmup_steps, steps, steps == 1 ? "" : "s", steps == 1 ? " and nothing is trained" : "");
}

std::string RunLength::extension_text(LrScheduleKind schedule) const {
  if (!extended_from) return "";
  const std::string rate = schedule == LrScheduleKind::constant
                               ? std::string("the learning rate stays constant")
                               : fmt::format("from here on the learning rate is that of a {} schedule over {} steps",
                                             enum_name(schedule), steps);
  return fmt::format("the run is extended from {} to {} steps: {}; warm-up stays {} steps", *extended_from, steps, rate,
                     warmup_steps);
}

}  // namespace so
