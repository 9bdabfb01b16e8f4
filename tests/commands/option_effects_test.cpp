// No option does nothing: each is read by the command that declares it, and where a mode leaves it idle it is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string_view>

#include "commands/program/parse.h"
#include "support/paths.h"

namespace so {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

std::string text_of(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string sources_below(std::initializer_list<const char*> folders) {
  std::string text;
  for (const char* folder : folders)
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(test::source_tree()) / "src" / folder))
      if (entry.path().extension() == ".cpp" || entry.path().extension() == ".h") text += text_of(entry.path());
  return text;
}

std::string source_of(const Command& command) {
  std::string name(command.name);
  fs::path folder = fs::path(test::source_tree()) / "src" / "commands";
  if (const auto space = name.find(' '); space != name.npos) {
    folder /= name.substr(0, space);
    name[space] = '_';
  }
  return text_of(folder / (name + ".cpp"));
}

bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Whether the text reads that member of options, under one of the names that options have there, and calls no function
// of that name. Not a regular expression, which takes half a minute for all options.
bool reads(std::string_view text, std::string_view member) {
  static const std::set<std::string_view> names{"options", "options_", "o",     "before",
                                                "request", "knobs",    "asked", "own"};
  for (std::size_t at = text.find(member); at != std::string_view::npos; at = text.find(member, at + 1)) {
    const std::size_t end = at + member.size();
    if (at == 0 || text[at - 1] != '.' || (end < text.size() && (in_word(text[end]) || text[end] == '('))) continue;
    std::size_t begin = at - 1;
    while (begin > 0 && in_word(text[begin - 1])) --begin;
    if (names.contains(text.substr(begin, at - 1 - begin))) return true;
  }
  return false;
}

// The options of `command` that nothing reads. What the command's own file does not read may be read by what it hands
// its options to.
std::set<std::string> unread(const Command& command) {
  std::string text = source_of(command);
  for (const char* file :
       {"src/options/option_groups.cpp", "src/options/step_option_groups.cpp", "src/commands/program/parse.cpp"})
    text += text_of(fs::path(test::source_tree()) / file);
  if (text.find("run_request(options") != std::string::npos)
    text += sources_below({"plan"}) + text_of(fs::path(test::source_tree()) / "src/options/run_request.cpp");
  if (text.find("complete_ranks(options") != std::string::npos)
    text += text_of(fs::path(test::source_tree()) / "src/commands/program/rank_work.cpp");
  if (text.find("parameter_rules(options") != std::string::npos)
    text += text_of(fs::path(test::source_tree()) / "src/checkpoint/parameter_options.cpp");
  if (text.find("sampling_of(options") != std::string::npos)
    text += text_of(fs::path(test::source_tree()) / "src/commands/inference/answer_options.cpp");
  if (command.name == "train") {
    text += sources_below({"train", "checkpoint"});
    const std::string options = text_of(fs::path(test::source_tree()) / "src/options/train_options.cpp");
    text += options.substr(options.find("int resolve_cpu_threads"));
  }
  std::set<std::string> names;
  for (const OptionSpec& spec : command.rows->specs())
    if (!reads(text, spec.name == "stdin" ? "from_stdin" : spec.name)) names.insert(spec.name);
  // Read by its name for every command that has it, before the command runs.
  const std::string hub = text_of(fs::path(test::source_tree()) / "src/commands/program/hub_ids.cpp");
  if (hub.find("is_set(options, \"download\")") != std::string::npos) names.erase("download");
  return names;
}

TEST(OptionEffects, EveryOptionIsRead) {
  EXPECT_TRUE(reads("x = options.lr;", "lr"));
  for (const char* other : {"options.lr_scheduler", "my_options.lr", "options.lr()", "options->lr", "xlr", "lr"})
    EXPECT_FALSE(reads(other, "lr")) << other;
  for (const Command& command : all_commands()) {
    for (const std::string& name : unread(command))
      ADD_FAILURE() << "nothing reads --" << name << " of superoffload " << command.name;
  }
}

// The options that have something to do in each mode. With those that the mode refuses they are all there are, so
// whoever adds an option says what becomes of it in each mode.
struct Case {
  const char* command;
  const char* mode;
  Words line;  // that is in the mode
  const char* busy;
};

const std::vector<Case>& cases() {
  static const char* const train =
      "config print_config model data data_weights eval_data download validation_split output_dir overwrite_output_dir dry_run packing shuffle chat_template train_on_prompt "
      "mask_history parse_special_tokens cache_dir num_train_epochs max_steps max_skipped_steps seed rope_scaling rope_factor batch_size max_length "
      "gradient_accumulation_steps activation_checkpointing grad_accum_dtype fp8 fp8_keep_layers optimizer_state_dtype deterministic offload_optimizer offload_ratio "
      "gathered_layers bucket_size host_memory lr lr_scheduler min_lr decay warmup warmup_num_steps weight_decay adam_beta1 adam_beta2 adam_epsilon "
      "max_grad_norm freeze lr_multiplier label_smoothing_factor resume allow_changed log_interval wall_clock_breakdown trace trace_steps device dtype "
      "cpu_threads gpus sequence_parallel_size bind_cores_to_rank cpu_list collectives deepspeed_config pin_memory cpuadam_cores_perc verbose quiet ";
  static const std::string output =
      std::string(train) +
      "save_strategy save_steps save_total_limit save_only_model eval_strategy eval_steps load_best_model_at_end metric_for_best_model early_stopping_patience early_stopping_threshold sample_prompts sample_steps sample_max_new_tokens ";
  static const std::string none = output + "device_memory profile";
  static const std::string all_of_train =
      output + "device_memory profile streamed_layers mode cast_side update_over_link move_gradients";
  const auto without = [](std::string names, const std::string& name) {
    return names.erase(names.find(" " + name + " "), name.size() + 1);
  };
  static const std::string cpu =
      without(output + "streamed_layers mode cast_side update_over_link move_gradients", "collectives");
  static const std::string alone = without(all_of_train, "collectives");
  static const std::string falling = without(all_of_train, "decay"), constant = without(falling, "min_lr");
  static const std::string saves = without(all_of_train, "save_steps"), evaluates = without(all_of_train, "eval_steps");
  static const std::string whole = without(all_of_train, "mask_history"),
                           unscaled = without(all_of_train, "rope_factor");
  static const std::vector<Case> all = {
      {"train", "offload_optimizer", {"--offload_optimizer", "none"}, none.c_str()},
      {"train", "device", {"--device", "cpu"}, cpu.c_str()},
      {"train", "gpus", {}, alone.c_str()},
      {"train", "offload_ratio", {"--offload_ratio", "0"}, none.c_str()},
      {"train", "train_on_prompt", {"--train_on_prompt"}, whole.c_str()},
      {"eval",
       "train_on_prompt",
       {"--train_on_prompt"},
       "model data download batch_size max_length chat_template train_on_prompt parse_special_tokens cache_dir json device dtype cpu_threads gpus sequence_parallel_size "
       "bind_cores_to_rank cpu_list collectives verbose quiet"},
      {"eval",
       "device",
       {"--device", "cpu"},
       "model data download batch_size max_length chat_template train_on_prompt mask_history parse_special_tokens cache_dir json device dtype "
       "cpu_threads gpus sequence_parallel_size bind_cores_to_rank cpu_list verbose quiet"},
      {"eval",
       "gpus",
       {},
       "model data download batch_size max_length chat_template train_on_prompt mask_history parse_special_tokens cache_dir json device dtype "
       "cpu_threads gpus sequence_parallel_size bind_cores_to_rank cpu_list verbose quiet"},
      {"train", "lr_scheduler", {"--lr_scheduler", "constant", "--lr", "1"}, constant.c_str()},
      {"train", "lr_scheduler", {}, falling.c_str()},
      {"train", "lr_scheduler", {"--lr_scheduler", "cosine"}, falling.c_str()},
      {"train", "rope_scaling", {}, unscaled.c_str()},
      {"train", "rope_scaling", {"--rope_scaling", "none"}, unscaled.c_str()},
      {"train", "save_strategy", {"--save_strategy", "no"}, saves.c_str()},
      {"train", "save_strategy", {"--save_strategy", "epoch"}, saves.c_str()},
      {"train", "eval_strategy", {"--eval_strategy", "no", "--eval_data", "e"}, evaluates.c_str()},
      {"train", "eval_strategy", {"--eval_strategy", "epoch", "--eval_data", "e"}, evaluates.c_str()},
      {"generate",
       "temperature",
       {"--prompt", "p"},
       "model download prompt prompt_file alpaca chat system messages chat_template parse_special_tokens max_new_tokens temperature stop_at_eos "
       "json device dtype cpu_threads verbose quiet"},
      {"generate",
       "chat",
       {"--prompt", "p", "--chat"},
       "model download prompt prompt_file chat system messages chat_template parse_special_tokens max_new_tokens temperature top_k top_p "
       "stop_at_eos seed json device dtype cpu_threads verbose quiet"},
      {"generate",
       "messages",
       {"--messages", "f"},
       "model download prompt prompt_file messages chat_template parse_special_tokens max_new_tokens temperature top_k top_p stop_at_eos seed "
       "json device dtype cpu_threads verbose quiet"},
      {"chat",
       "temperature",
       {},
       "model download chat_template system max_length max_new_tokens temperature device dtype cpu_threads verbose quiet"},
      {"tokenize",
       "decode",
       {"--decode", "1"},
       "model download text file stdin decode no_special_tokens chat_template show record train_on_prompt mask_history max_length color json "
       "verbose quiet"},
      {"tokenize",
       "show",
       {"--show", "f"},
       "model download text file stdin decode chat_template parse_special_tokens show record train_on_prompt mask_history max_length color json "
       "verbose quiet"},
      {"report", "watch", {}, "runs output watch verbose quiet"},
      {"plan",
       "offload_optimizer",
       {"--offload_optimizer", "none"},
       "model download batch_size max_length gradient_accumulation_steps activation_checkpointing grad_accum_dtype fp8 fp8_keep_layers optimizer_state_dtype deterministic "
       "offload_optimizer offload_ratio gathered_layers bucket_size device_memory host_memory freeze dtype hardware gpus sequence_parallel_size gpus_per_host "
       "next_larger explain trace json "
       "verbose quiet"},
      {"plan",
       "offload_ratio",
       {"--offload_ratio", "0"},
       "model download batch_size max_length gradient_accumulation_steps activation_checkpointing grad_accum_dtype fp8 fp8_keep_layers optimizer_state_dtype deterministic "
       "offload_optimizer offload_ratio gathered_layers bucket_size device_memory host_memory freeze dtype hardware gpus sequence_parallel_size gpus_per_host "
       "next_larger explain trace json "
       "verbose quiet"},
      {"bench step",
       "no_optimizer",
       {"--no_optimizer"},
       "config batch_size max_length gradient_accumulation_steps activation_checkpointing grad_accum_dtype fp8 fp8_keep_layers deterministic device_memory "
       "host_memory no_optimizer freeze steps warmup breakdown trace json device dtype cpu_threads cpu_list verbose quiet"},
      {"bench step",
       "offload_optimizer",
       {"--offload_optimizer", "none"},
       "config batch_size max_length gradient_accumulation_steps activation_checkpointing grad_accum_dtype fp8 fp8_keep_layers optimizer_state_dtype deterministic "
       "offload_optimizer offload_ratio gathered_layers bucket_size device_memory host_memory no_optimizer freeze max_grad_norm steps warmup "
       "breakdown trace json device dtype cpu_threads gpus sequence_parallel_size bind_cores_to_rank cpu_list collectives verbose quiet"},
      {"bench step",
       "offload_ratio",
       {"--offload_ratio", "0"},
       "config batch_size max_length gradient_accumulation_steps activation_checkpointing grad_accum_dtype fp8 fp8_keep_layers optimizer_state_dtype deterministic "
       "offload_optimizer offload_ratio gathered_layers bucket_size device_memory host_memory no_optimizer freeze max_grad_norm steps warmup "
       "breakdown trace json device dtype cpu_threads gpus sequence_parallel_size bind_cores_to_rank cpu_list collectives verbose quiet"},
      {"bench step",
       "device",
       {"--device", "cpu"},
       "config batch_size max_length gradient_accumulation_steps activation_checkpointing grad_accum_dtype fp8 fp8_keep_layers optimizer_state_dtype deterministic "
       "offload_optimizer offload_ratio streamed_layers gathered_layers mode cast_side update_over_link move_gradients bucket_size device_memory host_memory "
       "no_optimizer freeze max_grad_norm steps warmup breakdown trace json device dtype cpu_threads gpus sequence_parallel_size bind_cores_to_rank cpu_list verbose quiet"},
      {"bench step",
       "breakdown",
       {"--breakdown", "false"},
       "config batch_size max_length gradient_accumulation_steps activation_checkpointing grad_accum_dtype fp8 fp8_keep_layers optimizer_state_dtype deterministic "
       "offload_optimizer offload_ratio streamed_layers gathered_layers mode cast_side update_over_link move_gradients bucket_size device_memory host_memory "
       "no_optimizer freeze max_grad_norm steps warmup breakdown json device dtype cpu_threads gpus sequence_parallel_size bind_cores_to_rank cpu_list collectives verbose quiet"},
      {"bench step",
       "gpus",
       {},
       "config batch_size max_length gradient_accumulation_steps activation_checkpointing grad_accum_dtype fp8 fp8_keep_layers optimizer_state_dtype deterministic "
       "offload_optimizer offload_ratio streamed_layers gathered_layers mode cast_side update_over_link move_gradients bucket_size device_memory host_memory "
       "no_optimizer freeze max_grad_norm steps warmup breakdown trace json device dtype cpu_threads gpus sequence_parallel_size bind_cores_to_rank cpu_list verbose quiet"},
  };
  return all;
}

std::set<std::string> split(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

Words line_of(const Command& command, const Words& more) {
  Words words(1, "");
  std::istringstream in{std::string(command.name)};
  words.assign(std::istream_iterator<std::string>(in), {});
  for (const OptionSpec& spec : command.rows->specs())
    if (spec.is_required) words.insert(words.end(), {"--" + spec.name, "x"});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// A value that is not the default's, nor the one that stands for unset.
std::string other_value(const OptionSpec& spec) {
  switch (spec.kind) {
    case OptionKind::boolean:
      return std::get<bool>(spec.default_value) ? "false" : "true";
    case OptionKind::integer:
      return "8192";
    case OptionKind::real:
      return spec.lower >= 0.75 ? "2.5" : "0.75";
    case OptionKind::text:
      return "text";
    case OptionKind::choice:
      return spec.choices.back();
  }
  return {};
}

TEST(OptionEffects, AModeRefusesWhatItLeavesIdle) {
  std::size_t modes = 0;
  for (const Command& command : all_commands()) modes += command.modes.size();
  EXPECT_EQ(modes, cases().size()) << "each mode needs its case here";
  for (const Case& c : cases()) {
    const Command& command = *find_command(c.command);
    SCOPED_TRACE(std::string(c.command) + " " + c.mode);
    const ParsedCommand parsed = parse_command_line(line_of(command, c.line));
    const auto mode = std::find_if(command.modes.begin(), command.modes.end(), [&](const Mode& m) {
      const std::string value = to_string(parsed.view().get(m.option));
      const bool other = value != to_string(command.rows->at(m.option).default_value);
      return m.option == c.mode && (m.value.empty() ? other : value == m.value);
    });
    ASSERT_NE(mode, command.modes.end());
    std::set<std::string> named = split(c.busy);
    for (const std::string_view idle : mode->idle) {
      EXPECT_TRUE(named.insert(std::string(idle)).second) << idle << " is busy and idle";
      Words more = c.line;
      const std::string value = other_value(command.rows->at(idle));
      more.insert(more.end(), {"--" + std::string(idle), value});
      try {
        parse_command_line(line_of(command, more));
        ADD_FAILURE() << "--" << idle << " " << value << " is accepted";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(idle), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find(mode->why), std::string::npos) << error.what();
      }
    }
    std::set<std::string> all;
    for (const OptionSpec& spec : command.rows->specs()) all.insert(spec.name);
    EXPECT_EQ(named, all) << "say of each option whether it has something to do in this mode";
  }
}

TEST(OptionEffects, AnOptionThatIsNotThereSaysWhy) {
  try {
    parse_command_line({"eval", "--model", "m", "--data", "d", "--packing"});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "there is no option --packing: records are evaluated end to end, and no row is filled up; remove it");
  }
}

// DeepSpeed's key says whether to page-lock; what asks for the impossible is refused.
TEST(OptionEffects, PinMemoryIsNotChosen) {
  const fs::path file = fs::path(testing::TempDir()) / "so_pin_memory_test.json";
  const auto read = [&](const char* value) {
    std::ofstream(file) << R"({"zero_optimization": {"offload_optimizer": {"pin_memory": )" << value << "}}}";
    parse_command_line(
        {"train", "--model", "m", "--data", "d", "--output_dir", "o", "--deepspeed_config", file.string()});
  };
  EXPECT_NO_THROW(read("true"));
  try {
    read("false");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              file.string() +
                  ": zero_optimization.offload_optimizer.pin_memory is false: host memory that a GPU reads "
                  "and writes is always page-locked; set it to true or remove it");
  }
  fs::remove(file);
}

}  // namespace
}  // namespace so
