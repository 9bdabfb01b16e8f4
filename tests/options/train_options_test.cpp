#include "options/train_options.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "options/command_options.h"
#include "options/file_options.h"

namespace so {
namespace {

std::vector<std::string> names(const OptionRows& rows) {
  std::vector<std::string> out;
  for (const OptionSpec& spec : rows.specs()) out.push_back(spec.name);
  return out;
}

using Names = std::vector<std::string>;

// Pinned, so that to add, rename or drop an option is a decision and not an accident. docs/command-line.md follows by
// itself (tests/commands/docs_test.cpp says how).
// What a step computes with in fp32 is refused where it is read, not where it has become zero or infinite.
TEST(OptionLists, RealValuesKeepToWhatFp32Holds) {
  const auto check = [](const OptionRows& rows) {
    for (const OptionSpec& spec : rows.specs()) {
      if (spec.kind != OptionKind::real) continue;
      EXPECT_GE(spec.lower, 0) << spec.name;
      EXPECT_TRUE(spec.lower == 0 || static_cast<float>(spec.lower) >= std::numeric_limits<float>::min()) << spec.name;
      EXPECT_LE(spec.upper, 1e30) << spec.name;
      const auto refuse = [&](const char* text) {
        EXPECT_THROW(parse_value(spec, text, "--" + spec.name), Error) << spec.name << " " << text;
      };
      for (const char* text : {"1e308", "-1e-60", "1e-400", "1e999", "nan", "inf"}) refuse(text);
      if (spec.lower > 0 && !spec.lower_open) refuse("1e-60");
      if (spec.name.starts_with("adam_beta")) refuse("0.99999999");
    }
  };
  check(train_option_table());
  check(generate_option_table());
  check(plan_option_table());
  check(bench_step_option_table());
}

TEST(OptionLists, ArePinned) {
  EXPECT_EQ(names(train_option_table()), (Names{"model",
                                                "data",
                                                "eval_data",
                                                "output_dir",
                                                "overwrite_output_dir",
                                                "dry_run",
                                                "cache_dir",
                                                "max_length",
                                                "packing",
                                                "shuffle",
                                                "train_on_prompt",
                                                "parse_special_tokens",
                                                "batch_size",
                                                "gradient_accumulation_steps",
                                                "num_train_epochs",
                                                "max_steps",
                                                "max_skipped_steps",
                                                "seed",
                                                "lr",
                                                "lr_scheduler",
                                                "warmup",
                                                "warmup_num_steps",
                                                "weight_decay",
                                                "adam_beta1",
                                                "adam_beta2",
                                                "adam_epsilon",
                                                "max_grad_norm",
                                                "optimizer_state_dtype",
                                                "save_steps",
                                                "save_total_limit",
                                                "resume",
                                                "log_interval",
                                                "eval_steps",
                                                "wall_clock_breakdown",
                                                "trace",
                                                "trace_steps",
                                                "bench_steps",
                                                "warmup_steps",
                                                "device",
                                                "dtype",
                                                "activation_checkpointing",
                                                "bucket_size",
                                                "cpu_threads",
                                                "device_memory",
                                                "host_memory",
                                                "deepspeed_config",
                                                "mode",
                                                "offload_optimizer",
                                                "offload_ratio",
                                                "streamed_layers",
                                                "cast_side",
                                                "profile",
                                                "pin_memory",
                                                "cpuadam_cores_perc",
                                                "verbose",
                                                "quiet"}));
  EXPECT_EQ(names(init_option_table()),
            (Names{"config", "tokenizer", "output_dir", "overwrite_output_dir", "seed", "dtype", "verbose", "quiet"}));
  EXPECT_EQ(names(eval_option_table()),
            (Names{"model", "data", "batch_size", "max_length", "packing", "train_on_prompt", "parse_special_tokens",
                   "cache_dir", "json", "device", "dtype", "cpu_threads", "verbose", "quiet"}));
  EXPECT_EQ(
      names(generate_option_table()),
      (Names{"model", "prompt", "prompt_file", "alpaca", "parse_special_tokens", "max_new_tokens", "temperature",
             "top_k", "top_p", "stop_at_eos", "seed", "json", "device", "dtype", "cpu_threads", "verbose", "quiet"}));
  EXPECT_EQ(names(tokenize_option_table()), (Names{"model", "text", "file", "stdin", "decode", "no_special_tokens",
                                                   "parse_special_tokens", "json", "verbose", "quiet"}));
  EXPECT_EQ(names(plan_option_table()), (Names{"model",
                                               "batch_size",
                                               "max_length",
                                               "gradient_accumulation_steps",
                                               "offload_optimizer",
                                               "offload_ratio",
                                               "streamed_layers",
                                               "mode",
                                               "cast_side",
                                               "bucket_size",
                                               "optimizer_state_dtype",
                                               "activation_checkpointing",
                                               "dtype",
                                               "hardware",
                                               "gpus",
                                               "device_memory",
                                               "host_memory",
                                               "explain",
                                               "trace",
                                               "json",
                                               "verbose",
                                               "quiet"}));
  EXPECT_EQ(names(profile_option_table()), (Names{"output", "overwrite", "cpu_threads", "verbose", "quiet"}));
  EXPECT_EQ(names(verify_option_table()), (Names{"dir", "json", "verbose", "quiet"}));
  EXPECT_EQ(names(cache_option_table()),
            (Names{"cache_dir", "prune", "all", "older_than", "max_size", "json", "verbose", "quiet"}));
  EXPECT_EQ(names(bench_step_option_table()), (Names{"config",
                                                     "batch_size",
                                                     "max_length",
                                                     "gradient_accumulation_steps",
                                                     "no_optimizer",
                                                     "offload_optimizer",
                                                     "offload_ratio",
                                                     "streamed_layers",
                                                     "mode",
                                                     "cast_side",
                                                     "bucket_size",
                                                     "max_grad_norm",
                                                     "optimizer_state_dtype",
                                                     "activation_checkpointing",
                                                     "steps",
                                                     "warmup",
                                                     "breakdown",
                                                     "trace",
                                                     "json",
                                                     "device",
                                                     "dtype",
                                                     "cpu_threads",
                                                     "device_memory",
                                                     "host_memory",
                                                     "verbose",
                                                     "quiet"}));
  EXPECT_EQ(names(bench_ops_option_table()),
            (Names{"config", "tokens", "max_length", "json", "device", "dtype", "cpu_threads", "verbose", "quiet"}));
  EXPECT_EQ(names(bench_load_option_table()),
            (Names{"model", "rounds", "json", "device", "dtype", "cpu_threads", "verbose", "quiet"}));
}

// What a resumed run must agree on with its checkpoint. Speed, place and reporting are not in it: results must not
// depend on them.
TEST(TrainOptions, ThoseThatAffectResultsArePinned) {
  Names affecting;
  for (const OptionSpec& spec : train_option_table().specs())
    if (spec.changes_results) affecting.push_back(spec.name);
  EXPECT_EQ(affecting, (Names{"max_length",
                              "packing",
                              "shuffle",
                              "train_on_prompt",
                              "parse_special_tokens",
                              "batch_size",
                              "gradient_accumulation_steps",
                              "num_train_epochs",
                              "max_steps",
                              "seed",
                              "lr",
                              "lr_scheduler",
                              "warmup",
                              "warmup_num_steps",
                              "weight_decay",
                              "adam_beta1",
                              "adam_beta2",
                              "adam_epsilon",
                              "max_grad_norm",
                              "optimizer_state_dtype",
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
  EXPECT_EQ(o.warmup_steps, 15);
  EXPECT_TRUE(o.shuffle);
  // finetune_<model>_<n>gpu.sh
  EXPECT_EQ(o.lr, 1e-5);
  EXPECT_EQ(o.batch_size, 4);
  // TrainingArguments
  EXPECT_EQ(o.gradient_accumulation_steps, 1);
  EXPECT_EQ(o.max_steps, -1);
  EXPECT_EQ(o.lr_scheduler, LrScheduler::linear);
  EXPECT_EQ(o.adam_beta1, 0.9);
  EXPECT_EQ(o.adam_beta2, 0.999);
  EXPECT_EQ(o.adam_epsilon, 1e-8);
  EXPECT_EQ(o.max_grad_norm, 1.0);
  EXPECT_EQ(o.save_steps, 500);
}

TEST(OptionLists, EveryRowIsComplete) {
  const OptionRows* tables[] = {&train_option_table(),     &init_option_table(),       &eval_option_table(),
                                &generate_option_table(),  &tokenize_option_table(),   &bench_step_option_table(),
                                &bench_ops_option_table(), &bench_load_option_table(), &plan_option_table(),
                                &profile_option_table(),   &verify_option_table(),     &cache_option_table()};
  for (const OptionRows* rows : tables) {
    std::set<std::string> seen;
    for (const OptionSpec& spec : rows->specs()) {
      EXPECT_FALSE(spec.help.empty()) << spec.name;
      EXPECT_NE(spec.help.back(), '.') << spec.name;
      EXPECT_FALSE(spec.group.empty()) << spec.name;
      EXPECT_EQ(spec.default_origin.empty(), spec.is_required) << spec.name << ": say where the default comes from";
      EXPECT_FALSE(spec.is_file_only && spec.deepspeed_keys.empty()) << spec.name << ": nothing can set it";
      if (!to_string(spec.default_value).empty()) {  // empty: "not given"; else it must be a value that could be given
        EXPECT_EQ(check_value(spec, spec.default_value, spec.name), spec.default_value) << spec.name;
      }
      for (const std::string& foreign : spec.foreign_names) {
        EXPECT_EQ(rows->find(foreign), nullptr) << foreign << " is an option of its own";
        EXPECT_TRUE(seen.insert(foreign).second) << foreign << " is claimed twice";
      }
    }
  }
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
  EXPECT_EQ(refusal(eval), "--eval_steps 10 needs records to evaluate on: add --eval_data FILE");
  eval.eval_data = "e";
  EXPECT_EQ(refusal(eval), "accepted");

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

  OptionOrigins origins;
  origins["warmup_steps"].origin = Origin::command_line;
  EXPECT_EQ(refusal(o, origins),
            "--warmup_steps counts the steps before a benchmark's measured ones: add --bench_steps N (for the learning "
            "rate's warm-up use --warmup RATIO)");
  o.bench_steps = 1;
  EXPECT_EQ(refusal(o, origins), "accepted");
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
  EXPECT_THROW(check_cpu_threads(17, 16), Error);
  EXPECT_NO_THROW(check_cpu_threads(16, 16));
  EXPECT_NO_THROW(check_cpu_threads(0, 16));
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

TEST(GenerateOptions, CombinationsAreRefused) {
  const auto refused = [](const GenerateOptions& o, std::initializer_list<const char*> given) -> std::string {
    OptionOrigins origins;
    for (const char* name : given) origins[name].origin = Origin::command_line;
    try {
      check_options(o, origins);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  GenerateOptions o;
  o.model = "m";
  EXPECT_EQ(refused(o, {}), "missing --prompt or --prompt_file");
  EXPECT_EQ(refused(o, {"prompt"}), "accepted");  // an empty prompt is a prompt
  EXPECT_EQ(refused(o, {"prompt", "prompt_file"}), "--prompt and --prompt_file exclude each other: give one of them");
  EXPECT_EQ(refused(o, {"prompt", "top_p"}),
            "--top_p has no effect on greedy generation: add --temperature T, or remove it");
  o.temperature = 0.7;
  EXPECT_EQ(refused(o, {"prompt", "top_p"}), "accepted");
}

TEST(TokenizeOptions, ExactlyOneSource) {
  const auto refused = [](const TokenizeOptions& o, std::initializer_list<const char*> given) -> std::string {
    OptionOrigins origins;
    for (const char* name : given) origins[name].origin = Origin::command_line;
    try {
      check_options(o, origins);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  TokenizeOptions o;
  o.model = "m";
  EXPECT_EQ(refused(o, {}), "missing --text or --file or --stdin or --decode");
  EXPECT_EQ(refused(o, {"stdin"}), "missing --text or --file or --stdin or --decode");  // --stdin false
  o.from_stdin = true;
  EXPECT_EQ(refused(o, {"stdin"}), "accepted");
  EXPECT_EQ(refused(o, {"stdin", "decode"}), "--stdin and --decode exclude each other: give one of them");
}

}  // namespace
}  // namespace so
