#include "checkpoint/run_length.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_tree.h"

namespace so {
namespace {

std::int64_t steps_of(const LengthOptions& options, const BatchIterator& batches) {
  return options.max_steps ? *options.max_steps : batches.steps_in_epochs(options.num_train_epochs);
}

}  // namespace

TrainOptions with_recorded_split(const TrainOptions& asked, const std::string& record, const std::string& state_file) {
  const auto recorded = json_tree(record);
  if (!recorded.is_object()) return asked;
  const auto number = [&](const char* name, std::int64_t otherwise) {
    const auto it = recorded.find(name);
    if (it == recorded.end() || !it->is_number_integer()) return otherwise;  // records of older versions know no ranks
    const auto value = it->get<std::int64_t>();
    return value >= 1 && value <= 1'000'000 ? value : otherwise;
  };
  const std::int64_t ranks = number("gpus", 1), micro_batches = number("gradient_accumulation_steps", 1);
  const std::int64_t rows = number("batch_size", TrainOptions{}.batch_size), in_all = ranks * micro_batches;
  const std::int64_t asked_in_all = asked.gpus * asked.gradient_accumulation_steps;
  TrainOptions same = asked;
  same.gpus = static_cast<int>(ranks);
  same.gradient_accumulation_steps = micro_batches;
  same.batch_size = rows;
  if (rows == asked.batch_size && in_all == asked_in_all) return same;
  const std::string splits = fmt::format(
      "{} is of a run whose steps have {} x {} x {} rows (gpus, gradient_accumulation_steps, batch_size), and now they "
      "would have {} x {} x {}",
      state_file, ranks, micro_batches, rows, asked.gpus, asked.gradient_accumulation_steps, asked.batch_size);
  if (rows * in_all == asked.batch_size * asked_in_all) {
    if (may_change(asked, "batch_size") || may_change(asked, "gradient_accumulation_steps")) return same;
    fail(
        "{}: the same rows in another split, whose sums may round otherwise; allow that with --allow_changed batch_size, "
        "or give the split of before",
        splits);
  }
  const std::string advice = in_all % asked.gpus == 0 ? fmt::format("--batch_size {} --gradient_accumulation_steps {}",
                                                                    rows, in_all / asked.gpus)
                                                      : "as many ranks as before";
  fail("{}, which are other rows; give {}, or begin anew from its weights with --model {} and another --output_dir",
       splits, advice, std::filesystem::path(state_file).parent_path().string());
}

LengthOptions recorded_length(const LengthOptions& asked, const std::string& record) {
  const auto recorded = json_tree(record);
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
  if (steps_before > length.steps) {
    if (!may_change(options, "max_steps") && !may_change(options, "num_train_epochs"))
      fail(
          "{} is of a run of {} steps, and {} are asked for now, and a schedule ends with its run; give the recorded "
          "--max_steps {} and --num_train_epochs {}, or allow that with --allow_changed {}",
          state_file, steps_before, length.steps, before.max_steps.value_or(-1), before.num_train_epochs,
          options.max_steps ? "max_steps" : "num_train_epochs");
    if (resumed->step > length.steps)
      fail("{} is of step {}, and a run of {} steps has none to go on with; resume from an earlier checkpoint",
           state_file, resumed->step, length.steps);
  }
  if (steps_before != length.steps) length.changed_from = steps_before;
  if (may_change(options, "warmup") || may_change(options, "warmup_num_steps")) {
    length.records_warmup = true;
    return length;
  }
  if (resumed->warmup_steps >= 0)
    length.warmup_steps = resumed->warmup_steps;
  else
    length.warmup_steps = resolve_warmup_steps(options, steps_before);
  length.records_warmup = length.changed_from.has_value();
  return length;
}

std::string RunLength::long_warmup_text() const {
  if (warmup_steps < steps) return "";
  return fmt::format(
      "the warm-up takes {} of the run's {} step{}, so the learning rate, which rises from 0, never comes to --lr{}; give "
      "a smaller --warmup or --warmup_num_steps",
      warmup_steps, steps, steps == 1 ? "" : "s", steps == 1 ? " and nothing is trained" : "");
}

std::string RunLength::change_text(LrScheduleKind schedule) const {
  if (!changed_from) return "";
  const std::string rate = schedule == LrScheduleKind::constant
                               ? std::string("the learning rate stays constant")
                               : fmt::format("from here on the learning rate is that of a {} schedule over {} steps",
                                             enum_name(schedule), steps);
  return fmt::format("the run is {} from {} to {} steps: {}; warm-up is {} steps",
                     *changed_from < steps ? "extended" : "shortened", *changed_from, steps, rate, warmup_steps);
}

}  // namespace so
