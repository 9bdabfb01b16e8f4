#include "options/train_options.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "base/error.h"
#include "support/paths.h"

namespace so {
namespace {

// Every option of transformers' TrainingArguments and TRL's configurations, and every argument of their trainers, by
// the list that tests/fixtures/options/make_fixtures.py reads in their sources.
TEST(TrainOptions, KnowTheOptionsOfTransformersAndTrl) {
  std::ifstream names(test::fixtures() + "/options/transformers_trl.txt");
  int count = 0;
  for (std::string name; std::getline(names, name); ++count) {
    const OptionTable<TrainOptions>& table = train_option_table();
    if (table.find_given(name) != nullptr) continue;
    std::string said;
    try {
      said = meant_option(table, name, "--");
    } catch (const Error& error) {
      said = error.what();
    }
    EXPECT_TRUE(said.starts_with("; here it is --") || said.starts_with("there is no option --" + name + ": "))
        << name << ": " << said;
  }
  EXPECT_GT(count, 150);
}

// Names of transformers that are taken, each for the option that it means.
TEST(TrainOptions, HaveAliases) {
  const std::pair<const char*, const char*> aliases[] = {{"learning_rate", "lr"},
                                                         {"per_device_train_batch_size", "batch_size"},
                                                         {"gradient_checkpointing", "activation_checkpointing"},
                                                         {"warmup_ratio", "warmup"},
                                                         {"logging_steps", "log_interval"},
                                                         {"resume_from_checkpoint", "resume"},
                                                         {"model_name_or_path", "model"},
                                                         {"max_seq_length", "max_length"},
                                                         {"evaluation_strategy", "eval_strategy"},
                                                         {"deepspeed", "deepspeed_config"}};
  for (const auto& [alias, name] : aliases) {
    ASSERT_NE(train_option_table().find_given(alias), nullptr) << alias;
    EXPECT_EQ(train_option_table().find_given(alias)->name, name);
    EXPECT_EQ(train_option_table().find(alias), nullptr) << "a record or a DeepSpeed file has the option's own name";
  }
}

TEST(TrainOptions, SayHowOthersValuesAreCalledHere) {
  const auto error = [](const char* option, const char* value) {
    try {
      parse_value(train_option_table().at(option), value, std::string("--") + option);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(error("device", "gpu"), "--device: \"gpu\" is not one of auto, cpu, cuda; did you mean cuda?");
  EXPECT_TRUE(error("dtype", "bfloat16").ends_with("; did you mean bf16?"));
  EXPECT_TRUE(error("lr_scheduler", "constant_with_warmup").ends_with("; did you mean constant?"));
}

// A resumed run must agree with its checkpoint on these. Speed, place and reporting are not in it: results must not
// depend on them.
TEST(TrainOptions, ThoseThatAffectResultsArePinned) {
  std::set<std::string> affecting;
  for (const OptionSpec& spec : train_option_table().specs())
    if (spec.changes_results) affecting.insert(spec.name);
  EXPECT_EQ(affecting, (std::set<std::string>{"max_length",
                                              "rope_scaling",
                                              "rope_factor",
                                              "packing",
                                              "shuffle",
                                              "train_on_prompt",
                                              "chat_template",
                                              "mask_history",
                                              "parse_special_tokens",
                                              "batch_size",
                                              "gradient_accumulation_steps",
                                              "num_train_epochs",
                                              "data_weights",
                                              "validation_split",
                                              "load_best_model_at_end",
                                              "early_stopping_patience",
                                              "early_stopping_threshold",
                                              "label_smoothing_factor",
                                              "freeze",
                                              "lr_multiplier",
                                              "max_steps",
                                              "seed",
                                              "lr",
                                              "lr_scheduler",
                                              "min_lr",
                                              "decay",
                                              "warmup",
                                              "warmup_num_steps",
                                              "weight_decay",
                                              "adam_beta1",
                                              "adam_beta2",
                                              "adam_epsilon",
                                              "max_grad_norm",
                                              "grad_accum_dtype",
                                              "optimizer_state_dtype",
                                              "fp8",
                                              "fp8_keep_layers",
                                              "deterministic",
                                              "dtype"}));
}

// As the published script's argument parser and its recipes state them, and transformers.TrainingArguments 5.23.
TEST(TrainOptions, DefaultsAreThePublishedOnes) {
  const TrainOptions o;
  // finetune_zero3.py
  EXPECT_EQ(o.max_length, 2048);
  EXPECT_EQ(o.num_train_epochs, 1);
  EXPECT_EQ(o.weight_decay, 0.01);
  EXPECT_EQ(o.warmup, 0.01);
  EXPECT_EQ(o.seed, 42);
  EXPECT_EQ(o.log_interval, 1);
  EXPECT_TRUE(o.shuffle);
  // finetune_<model>_<n>gpu.sh
  EXPECT_EQ(o.lr, 1e-5);
  EXPECT_EQ(o.batch_size, 4);
  // TrainingArguments
  EXPECT_EQ(o.gradient_accumulation_steps, 1);
  EXPECT_EQ(o.max_steps, std::nullopt);
  EXPECT_EQ(o.lr_scheduler, LrScheduler::linear);
  EXPECT_EQ(o.adam_beta1, 0.9);
  EXPECT_EQ(o.adam_beta2, 0.999);
  EXPECT_EQ(o.adam_epsilon, 1e-8);
  EXPECT_EQ(o.max_grad_norm, 1.0);
  EXPECT_EQ(o.save_strategy, Cadence::steps);
  EXPECT_EQ(o.save_steps, 500);
}

TEST(TrainOptions, CadencesAreDueAtTheirSteps) {
  for (const bool ends_epoch : {false, true}) {
    EXPECT_FALSE(is_due(Cadence::no, 1, 3, ends_epoch));
    EXPECT_EQ(is_due(Cadence::epoch, 1, 3, ends_epoch), ends_epoch);
    EXPECT_TRUE(is_due(Cadence::steps, 3, 6, ends_epoch));
    EXPECT_FALSE(is_due(Cadence::steps, 3, 7, ends_epoch));
    EXPECT_FALSE(is_due(Cadence::steps, std::nullopt, 6, ends_epoch));
  }
}

// Unset members and the values that stand for them: in the record of a checkpoint they are the numbers that they have
// always been.
TEST(TrainOptions, UnsetIsANumberInTheRecord) {
  TrainOptions o;
  const auto recorded = [&](const char* name) { return train_option_table().view(o).get(name); };
  const auto set = [&](const char* name, const OptionValue& value) {
    train_option_table().ref(o).set(train_option_table().at(name), value);
  };
  EXPECT_EQ(recorded("max_steps"), OptionValue(std::int64_t{-1}));
  EXPECT_EQ(recorded("offload_ratio"), OptionValue(-1.0));
  EXPECT_EQ(recorded("streamed_layers"), OptionValue(std::int64_t{-1}));
  EXPECT_EQ(recorded("eval_steps"), OptionValue(std::int64_t{0}));
  EXPECT_EQ(recorded("resume"), OptionValue(std::string()));
  set("max_steps", std::int64_t{7});
  set("max_grad_norm", 0.0);
  set("resume", std::string("latest"));
  EXPECT_EQ(o.max_steps, 7);
  EXPECT_EQ(o.max_grad_norm, std::nullopt);
  EXPECT_EQ(o.resume, "latest");
  EXPECT_EQ(recorded("max_grad_norm"), OptionValue(0.0));
  set("max_steps", std::int64_t{-1});
  set("resume", std::string());
  EXPECT_EQ(o.max_steps, std::nullopt);
  EXPECT_EQ(o.resume, std::nullopt);
}

TEST(TrainOptions, EveryValueOfEveryEnumReadsBack) {
  TrainOptions o;
  for (const OptionSpec& spec : train_option_table().specs()) {
    for (const std::string& choice : spec.choices) {
      train_option_table().ref(o).set(spec, choice);
      EXPECT_EQ(train_option_table().view(o).get(spec), OptionValue(choice)) << spec.name;
    }
  }
}

std::string refusal(const TrainOptions& o, const OptionOrigins& origins = {}) {
  try {
    check_train_options(o, origins);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(TrainOptions, CombinationsAreRefused) {
  TrainOptions o;
  EXPECT_EQ(refusal(o), "missing --model DIR, --data FILE, --output_dir DIR");
  o.model = "m";
  o.data = "d";
  o.output_dir = "o";
  EXPECT_EQ(refusal(o), "accepted");

  TrainOptions eval = o;
  eval.eval_steps = 10;
  EXPECT_EQ(refusal(eval),
            "--eval_steps 10 needs records to evaluate on: add --eval_data FILE or --validation_split X");
  eval.eval_data = "e";
  EXPECT_EQ(refusal(eval), "accepted");

  TrainOptions held = o;
  held.eval_steps = 10;
  held.validation_split = 0.1;
  EXPECT_EQ(refusal(held), "accepted");
  held.validation_split = 12;
  EXPECT_EQ(refusal(held), "accepted");
  held.validation_split = 12.5;
  EXPECT_EQ(refusal(held), "--validation_split 12.5 is neither a share of the records, below 1, nor a number of them");
  held.eval_data = "e";
  EXPECT_EQ(refusal(held), "--eval_data and --validation_split each say which records are evaluated: give one of them");

  TrainOptions epochs = o;
  epochs.eval_strategy = Cadence::epoch;
  EXPECT_EQ(refusal(epochs),
            "--eval_strategy epoch needs records to evaluate on: add --eval_data FILE or --validation_split X");
  epochs.eval_data = "e";
  EXPECT_EQ(refusal(epochs), "accepted");

  TrainOptions best = o;
  best.load_best_model_at_end = true;
  EXPECT_EQ(refusal(best),
            "--load_best_model_at_end needs records to evaluate on: add --eval_data FILE or --validation_split X");
  best.eval_data = "e";
  EXPECT_EQ(refusal(best),
            "--load_best_model_at_end needs evaluations while the run goes on: add --eval_strategy epoch, or "
            "--eval_steps N");
  best.eval_steps = 5;
  EXPECT_EQ(refusal(best), "accepted");
  best.eval_strategy = Cadence::no;
  EXPECT_NE(refusal(best), "accepted");
  best.eval_strategy = Cadence::epoch;
  EXPECT_EQ(refusal(best), "accepted");
  TrainOptions patient = o;
  OptionOrigins threshold, metric;
  threshold["early_stopping_threshold"].origin = metric["metric_for_best_model"].origin = Origin::command_line;
  EXPECT_EQ(refusal(patient, threshold),
            "--early_stopping_threshold says which losses count as better: add --early_stopping_patience N");
  EXPECT_EQ(refusal(patient, metric),
            "--metric_for_best_model says what the best model is the best by: add --load_best_model_at_end or "
            "--early_stopping_patience N");
  patient.early_stopping_patience = 2;
  EXPECT_EQ(refusal(patient, threshold),
            "--early_stopping_patience needs records to evaluate on: add --eval_data FILE or --validation_split X");

  TrainOptions samples = o;
  OptionOrigins rate, length;
  rate["sample_steps"].origin = length["sample_max_new_tokens"].origin = Origin::command_line;
  EXPECT_EQ(refusal(samples, rate), "--sample_steps is about texts that are generated: add --sample_prompts FILE");
  EXPECT_EQ(refusal(samples, length),
            "--sample_max_new_tokens is about texts that are generated: add --sample_prompts FILE");
  samples.sample_prompts = "p";
  EXPECT_EQ(refusal(samples, rate), "accepted");

  TrainOptions least = o;
  least.min_lr = 2e-5;
  EXPECT_EQ(refusal(least),
            "--min_lr 2e-05 is above --lr 1e-05, the peak that the learning rate falls from: give a smaller one");
  least.lr = 2e-5;
  EXPECT_EQ(refusal(least), "accepted");

  TrainOptions resume = o;
  resume.resume = "latest";
  EXPECT_EQ(refusal(resume), "accepted");
  resume.overwrite_output_dir = true;
  EXPECT_EQ(refusal(resume), "--resume continues a run and --overwrite_output_dir discards it: give one of them");

  TrainOptions split = o;
  split.offload_optimizer = OptimizerDevice::none;
  EXPECT_EQ(refusal(split), "accepted");
  split.offload_ratio = 0;
  EXPECT_EQ(refusal(split), "accepted");
  split.offload_ratio = 0.5;
  const std::string nothing_to_split =
      "--offload_optimizer none leaves nothing for --offload_ratio 0.5 to split: remove one of them, or use "
      "--offload_optimizer cpu";
  for (const auto& [device, ratio, expected] : {std::tuple(Origin::file, Origin::file, nothing_to_split),
                                                {Origin::command_line, Origin::command_line, nothing_to_split},
                                                {Origin::file, Origin::command_line, nothing_to_split},
                                                {Origin::command_line, Origin::file, std::string("accepted")}}) {
    OptionOrigins from;
    from["offload_optimizer"].origin = device;
    from["offload_ratio"].origin = ratio;
    EXPECT_EQ(refusal(split, from), expected);
  }

  TrainOptions half = o;
  half.optimizer_state_dtype = StatePrecision::bf16;
  EXPECT_EQ(refusal(half),
            "--optimizer_state_dtype bf16 needs --adam_beta2 of at most 0.996, not "
            "0.999: above it rounding to bf16 swallows the second moments' decay, "
            "all or in part; use --adam_beta2 0.99, or --optimizer_state_dtype fp32");
  for (const double beta2 : {0.9, 0.99, 0.996}) {
    half.adam_beta2 = beta2;
    EXPECT_EQ(refusal(half), "accepted") << beta2;
  }
  half.adam_beta2 = 0.9961;
  EXPECT_NE(refusal(half), "accepted");
  half.optimizer_state_dtype = StatePrecision::fp32;
  EXPECT_EQ(refusal(half), "accepted");
}

TEST(TrainOptions, StepsOfWarmupBeatARatioThatCountsNoMore) {
  const auto steps_with = [](Origin ratio, Origin steps) {
    TrainOptions o;
    o.warmup = 0.05;
    o.warmup_num_steps = 7;
    OptionOrigins origins;
    origins["warmup"].origin = ratio;
    origins["warmup_num_steps"].origin = steps;
    resolve_warmup(o, origins);
    EXPECT_EQ(origins.of("warmup").overridden.empty(), o.warmup_num_steps.has_value());
    return resolve_warmup_steps(o, 100);
  };
  EXPECT_EQ(steps_with(Origin::built_in, Origin::file), 7);
  EXPECT_EQ(steps_with(Origin::command_line, Origin::command_line), 7);
  EXPECT_EQ(steps_with(Origin::run_file, Origin::command_line), 7);
  EXPECT_EQ(steps_with(Origin::run_file, Origin::file), 5);
  EXPECT_EQ(steps_with(Origin::command_line, Origin::run_file), 5);
}

TEST(TrainOptions, CpuThreads) {
  TrainOptions o;
  EXPECT_EQ(resolve_cpu_threads(o, 16), 0);
  o.cpuadam_cores_perc = 0.9;
  EXPECT_EQ(resolve_cpu_threads(o, 16), 14);  // 14.4
  EXPECT_EQ(resolve_cpu_threads(o, 10), 9);   // 0.9 is below nine tenths in binary, its product with 10 rounds to 9
  EXPECT_EQ(resolve_cpu_threads(o, 1), 1);
  o.cpu_threads = 3;
  EXPECT_EQ(resolve_cpu_threads(o, 16), 3);
  o.cpu_threads = 17;
  EXPECT_THROW(resolve_cpu_threads(o, 16), Error);
  EXPECT_THROW(check_cpu_threads(o, 16), Error);
  EXPECT_NO_THROW(check_cpu_threads(o, 17));
  EXPECT_NO_THROW(check_cpu_threads({}, 16));
}

// transformers: math.ceil(num_training_steps * ratio).
TEST(TrainOptions, WarmupSteps) {
  TrainOptions o;
  o.warmup = 0.05;
  EXPECT_EQ(resolve_warmup_steps(o, 100), 5);
  EXPECT_EQ(resolve_warmup_steps(o, 101), 6);
  EXPECT_EQ(resolve_warmup_steps(o, 1), 1);
  o.warmup = 0;
  EXPECT_EQ(resolve_warmup_steps(o, 100), 0);
  o.warmup_num_steps = 7;
  EXPECT_EQ(resolve_warmup_steps(o, 100), 7);
}

}  // namespace
}  // namespace so
