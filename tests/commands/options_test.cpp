// The options of every command: which there are, and that each row is complete.
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "commands/command.h"

namespace so {
namespace {

std::string names(const OptionRows& rows) {
  std::string text;
  for (const OptionSpec& spec : rows.specs()) text += (text.empty() ? "" : " ") + spec.name;
  return text;
}

// Pinned, so that to add, rename or drop an option is a decision and not an accident. docs/command-line.md follows by
// itself (tests/commands/docs_test.cpp says how).
TEST(OptionLists, ArePinned) {
  EXPECT_EQ(
      names(*find_command("train")->rows),
      "model data data_weights eval_data download validation_split output_dir overwrite_output_dir dry_run packing shuffle chat_template train_on_prompt "
      "mask_history parse_special_tokens cache_dir num_train_epochs max_steps max_skipped_steps seed rope_scaling rope_factor batch_size "
      "max_length gradient_accumulation_steps activation_checkpointing grad_accum_dtype fp8 fp8_keep_layers optimizer_state_dtype deterministic mode "
      "offload_optimizer offload_ratio streamed_layers gathered_layers cast_side update_over_link move_gradients bucket_size device_memory host_memory lr "
      "lr_scheduler min_lr decay warmup warmup_num_steps weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm freeze lr_multiplier label_smoothing_factor "
      "save_strategy save_steps save_total_limit save_only_model resume allow_changed log_interval eval_strategy eval_steps load_best_model_at_end metric_for_best_model early_stopping_patience early_stopping_threshold sample_prompts sample_steps sample_max_new_tokens wall_clock_breakdown trace trace_steps "
      "device dtype cpu_threads gpus sequence_parallel_size bind_cores_to_rank cpu_list collectives deepspeed_config profile pin_memory "
      "cpuadam_cores_perc config print_config verbose quiet");
  EXPECT_EQ(names(*find_command("init")->rows),
            "config tokenizer output_dir overwrite_output_dir seed dtype verbose quiet");
  EXPECT_EQ(
      names(*find_command("eval")->rows),
      "model data download batch_size max_length chat_template train_on_prompt mask_history parse_special_tokens cache_dir json device "
      "dtype cpu_threads gpus sequence_parallel_size bind_cores_to_rank cpu_list collectives verbose quiet");
  EXPECT_EQ(
      names(*find_command("generate")->rows),
      "model download prompt prompt_file alpaca chat system messages chat_template parse_special_tokens max_new_tokens stop_at_eos temperature top_k "
      "top_p seed json device dtype cpu_threads verbose quiet");
  EXPECT_EQ(
      names(*find_command("chat")->rows),
      "model download chat_template system max_length max_new_tokens temperature top_k top_p seed device dtype cpu_threads verbose quiet");
  EXPECT_EQ(
      names(*find_command("tokenize")->rows),
      "model download text file stdin decode no_special_tokens chat_template parse_special_tokens show record train_on_prompt mask_history "
      "max_length color json verbose quiet");
  EXPECT_EQ(
      names(*find_command("plan")->rows),
      "model download batch_size max_length gradient_accumulation_steps activation_checkpointing "
      "grad_accum_dtype fp8 fp8_keep_layers optimizer_state_dtype deterministic mode offload_optimizer offload_ratio streamed_layers gathered_layers cast_side update_over_link move_gradients bucket_size "
      "device_memory host_memory freeze dtype hardware gpus sequence_parallel_size gpus_per_host next_larger explain trace json verbose quiet");
  EXPECT_EQ(names(*find_command("profile")->rows), "output overwrite cpu_threads verbose quiet");
  EXPECT_EQ(names(*find_command("doctor")->rows),
            "partition apply undo gpus feeding_cores adamw_bandwidth json verbose quiet");
  EXPECT_EQ(names(*find_command("verify")->rows), "dir json verbose quiet");
  EXPECT_EQ(names(*find_command("report")->rows), "runs output watch port verbose quiet");
  EXPECT_EQ(names(*find_command("cache")->rows), "cache_dir prune all older_than max_size json verbose quiet");
  EXPECT_EQ(
      names(*find_command("bench step")->rows),
      "config batch_size max_length gradient_accumulation_steps activation_checkpointing "
      "grad_accum_dtype fp8 fp8_keep_layers optimizer_state_dtype deterministic mode offload_optimizer offload_ratio streamed_layers gathered_layers cast_side update_over_link move_gradients bucket_size "
      "device_memory host_memory no_optimizer freeze max_grad_norm steps warmup breakdown trace json device dtype "
      "cpu_threads gpus sequence_parallel_size bind_cores_to_rank cpu_list collectives verbose quiet");
  EXPECT_EQ(names(*find_command("bench ops")->rows),
            "config tokens max_length fp8 json device dtype cpu_threads verbose quiet");
  EXPECT_EQ(names(*find_command("bench load")->rows), "model rounds json device dtype cpu_threads verbose quiet");
}

// Values that fp32 arithmetic cannot hold are refused where they are read, not where they have become zero or infinite.
TEST(OptionLists, RealValuesKeepToWhatFp32Holds) {
  for (const Command& command : all_commands()) {
    for (const OptionSpec& spec : command.rows->specs()) {
      if (spec.kind != OptionKind::real) continue;
      SCOPED_TRACE(std::string(command.name) + " --" + spec.name);
      EXPECT_GE(spec.lower, 0);
      EXPECT_TRUE(spec.lower == 0 || static_cast<float>(spec.lower) >= std::numeric_limits<float>::min());
      EXPECT_LE(spec.upper, 1e30);
      const auto refuse = [&](const char* text) {
        EXPECT_THROW(parse_value(spec, text, "--" + spec.name), Error) << text;
      };
      for (const char* text : {"1e308", "-1e-60", "1e-400", "1e999", "nan", "inf"}) refuse(text);
      if (spec.lower > 0 && !spec.lower_open) refuse("1e-60");
      if (spec.name.starts_with("adam_beta")) refuse("0.99999999");
    }
  }
}

TEST(OptionLists, EveryRowIsComplete) {
  for (const Command& command : all_commands()) {
    std::set<std::string> seen;
    for (const OptionSpec& spec : command.rows->specs()) {
      SCOPED_TRACE(std::string(command.name) + " --" + spec.name);
      EXPECT_FALSE(spec.help.empty());
      EXPECT_NE(spec.help.back(), '.');
      EXPECT_FALSE(spec.group.empty());
      EXPECT_EQ(spec.default_origin.empty(), spec.is_required) << "say where the default comes from";
      EXPECT_FALSE(spec.is_file_only && spec.deepspeed_keys.empty()) << "nothing can set it";
      EXPECT_TRUE(!spec.may_be_unset || spec.special_value || spec.kind == OptionKind::text)
          << "say with or_else() which value stands for unset";
      if (!to_string(spec.default_value).empty()) {  // empty: "not given"; else it must be a value that could be given
        EXPECT_EQ(check_value(spec, spec.default_value, spec.name), spec.default_value);
      }
      for (const OptionRows::Absent& absent : command.rows->absent()) EXPECT_NE(absent.name, spec.name);
      for (const std::string& foreign : spec.foreign_names) {
        EXPECT_EQ(command.rows->find(foreign), nullptr) << foreign << " is an option of its own";
        EXPECT_TRUE(seen.insert(foreign).second) << foreign << " is claimed twice";
      }
    }
  }
}

}  // namespace
}  // namespace so
