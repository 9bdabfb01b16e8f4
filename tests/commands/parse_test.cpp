#include "commands/program/parse.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "base/build_facts.h"
#include "options/train_options.h"
#include "support/files.h"
#include "support/label.h"

namespace so {
namespace {

using Words = std::vector<std::string>;

TrainOptions parsed(const Words& words) { return parse_command_line(words).as<TrainOptions>(); }

// One value of a line that any command takes.
std::string value_of(const Words& words, const char* option) {
  return to_string(parse_command_line(words).view().get(option));
}

// "bench step" is two words on a line.
Words words_of(const Command& command) {
  Words words;
  std::istringstream in{std::string(command.name)};
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string error_of(const Words& words) {
  try {
    parse_command_line(words);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

Words train(const Words& more) {
  Words words = {"train", "--model", "m", "--data", "d", "--output_dir", "o"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Every option of every command can be set to something that is not its default, and arrives; in both spellings.
SO_LABEL(sweep, "Parse.EveryOptionArrives");
TEST(Parse, EveryOptionArrives) {
  for (const Command& command : all_commands()) {
    for (const OptionSpec& spec : command.rows->specs()) {
      if (spec.is_file_only || spec.name == "deepspeed_config" || spec.name == "print_config") continue;
      if (command.asked_file && spec.name == "config") continue;
      SCOPED_TRACE(std::string(command.name) + " --" + spec.name);
      std::string value = spec.name == "allow_changed" ? "lr" : "text";
      if (spec.kind == OptionKind::boolean) value = std::get<bool>(spec.default_value) ? "false" : "true";
      if (spec.kind == OptionKind::integer)
        value = to_string(OptionValue(static_cast<std::int64_t>(std::min(8192.0, spec.upper))));
      if (spec.kind == OptionKind::real) value = spec.lower < 0.75 ? "0.75" : to_string(OptionValue(spec.lower + 0.75));
      if (spec.kind == OptionKind::choice) value = spec.choices.back();
      ASSERT_NE(value, to_string(spec.default_value));
      Words base = words_of(command);
      for (const OptionSpec& other : command.rows->specs())
        if (other.is_required && other.name != spec.name) base.insert(base.end(), {"--" + other.name, "x"});
      const auto need = [&](const char* name, const char* with, const char* argument) {
        if (spec.name == name) base.insert(base.end(), {with, argument});
      };
      if (command.name == "generate" && spec.name.rfind("prompt", 0) != 0 && spec.name != "messages")
        base.insert(base.end(), {"--prompt", "p"});
      if (command.name == "generate") need("system", "--chat", "true");
      if (command.name == "generate") need("chat_template", "--chat", "true");
      if (command.name == "train") need("allow_changed", "--resume", "checkpoint-1");
      const std::set<std::string> sources = {"text", "file", "stdin", "decode", "show"};
      const std::set<std::string> of_record = {"record",     "train_on_prompt", "mask_history",
                                               "max_length", "color",           "chat_template"};
      if (command.name == "tokenize" && of_record.contains(spec.name))
        base.insert(base.end(), {"--show", "f"});
      else if (command.name == "tokenize" && !sources.contains(spec.name))
        base.insert(base.end(), {"--text", "t"});
      if (command.name == "cache")
        for (const char* rule : {"all", "older_than", "max_size"}) need(rule, "--prune", "true");
      if (command.name == "cache") need("prune", "--all", "true");
      const std::set<std::string> of_partitions = {"apply", "undo", "gpus", "feeding_cores", "adamw_bandwidth"};
      if (command.name == "doctor" && of_partitions.contains(spec.name)) base.push_back("--partition");
      need("eval_steps", "--eval_data", "e");
      need("eval_strategy", "--eval_data", "e");
      for (const char* of_best :
           {"load_best_model_at_end", "metric_for_best_model", "early_stopping_patience", "early_stopping_threshold"})
        if (spec.name == of_best) base.insert(base.end(), {"--eval_data", "e", "--eval_strategy", "epoch"});
      need("metric_for_best_model", "--load_best_model_at_end", "true");
      need("early_stopping_threshold", "--early_stopping_patience", "3");
      need("gathered_layers", "--gpus", "2");
      need("collectives", "--gpus", "2");
      need("sequence_parallel_size", "--gpus", "8192");
      need("trace_steps", "--trace", "t");
      need("sample_steps", "--sample_prompts", "p");
      need("sample_max_new_tokens", "--sample_prompts", "p");
      need("port", "--watch", "true");
      need("top_k", "--temperature", "1");
      need("top_p", "--temperature", "1");
      if (command.name == "generate" || command.name == "chat") need("seed", "--temperature", "1");
      need("rope_factor", "--rope_scaling", "linear");
      if (command.name == "train") need("min_lr", "--lr", "1");
      if (command.name == "train") need("decay", "--lr_scheduler", "wsd");
      if (command.name == "train") need("optimizer_state_dtype", "--adam_beta2", "0.9");
      Words two = base, one = base;
      two.insert(two.end(), {"--" + spec.name, value});
      one.push_back("--" + spec.name + "=" + value);
      for (const Words& words : {two, one}) {
        const ParsedCommand result = parse_command_line(words);
        EXPECT_EQ(result.origins.of(spec.name).origin, Origin::command_line);
        EXPECT_EQ(to_string(result.view().get(spec)), value);
      }
    }
  }
}

TEST(Parse, TrueFalseOptionsMayStandAlone) {
  EXPECT_TRUE(parsed(train({"--packing"})).packing);
  EXPECT_TRUE(parsed(train({"--packing", "--shuffle", "false"})).packing);
  EXPECT_FALSE(parsed(train({"--packing", "--shuffle", "false"})).shuffle);
  EXPECT_FALSE(parsed(train({"--packing=false"})).packing);
  EXPECT_EQ(parsed(train({"--activation_checkpointing"})).activation_checkpointing, Toggle::on);
  EXPECT_EQ(parsed(train({"--activation_checkpointing", "false"})).activation_checkpointing, Toggle::off);
  EXPECT_EQ(error_of(train({"--packing", "yes"})), "--packing: \"yes\" is neither true nor false");
}

TEST(Parse, ResumeMayStandAlone) {
  EXPECT_EQ(parsed(train({})).resume, std::nullopt);
  EXPECT_EQ(parsed(train({"--resume"})).resume, "latest");
  EXPECT_EQ(parsed(train({"--resume", "--seed", "1"})).resume, "latest");
  EXPECT_EQ(parsed(train({"--resume", "o/checkpoint-5"})).resume, "o/checkpoint-5");
}

// The value that a command is about needs no option's name.
TEST(Parse, OneValueMayStandWithoutItsOption) {
  EXPECT_EQ(value_of({"verify", "out"}, "dir"), "out");
  EXPECT_EQ(value_of({"verify", "--json", "--dir", "out"}, "dir"), "out");
  EXPECT_EQ(value_of({"verify", "out", "--json"}, "json"), "true");
  EXPECT_EQ(error_of({"verify", "out", "--dir", "out"}), "--dir is given 2 times; give it once");
  EXPECT_EQ(error_of({"verify", "a", "b"}),
            "unexpected argument \"b\": values belong to an option (superoffload verify --help)");
  EXPECT_EQ(value_of({"report", "a", "b", "--quiet"}, "runs"), "a,b");
  EXPECT_EQ(value_of({"report", "a", "--output", "p", "b", "c"}, "runs"), "a,b,c");
  EXPECT_EQ(error_of({"report", "a", "--runs", "b"}), "--runs is given 2 times; give it once");
  EXPECT_EQ(error_of({"verify"}), "missing --dir DIR");
}

// A value is taken as it is, whatever it looks like.
TEST(Parse, ValuesAreNotInterpreted) {
  for (const std::string text : {"", "-x", "-1", "--", "--not-an-option", "[INST] a, b [/INST]", "{}", "%% c", "a=b",
                                 "train", "\"q\"", "two\nlines", "-h2"}) {
    SCOPED_TRACE(text);
    EXPECT_EQ(value_of({"generate", "--model", "m", "--prompt", text}, "prompt"), text);
    EXPECT_EQ(value_of({"generate", "--model", "m", "--prompt=" + text}, "prompt"), text);
  }
  EXPECT_EQ(parsed(train({"--max_steps", "-1"})).max_steps, std::nullopt);
}

TEST(Parse, UnknownOptionsNameTheNearest) {
  EXPECT_EQ(error_of(train({"--batchsize", "3"})), "unknown option \"--batchsize\"; did you mean --batch_size?");
  EXPECT_EQ(error_of(train({"--batch-size=3"})), "unknown option \"--batch-size=3\"; did you mean --batch_size?");
  EXPECT_EQ(error_of(train({"--num_epochs", "3"})), "unknown option \"--num_epochs\"; here it is --num_train_epochs");
  EXPECT_EQ(error_of(train({"--learning_rate", "3", "--lr=2"})), "--lr is given 2 times; give it once");
  EXPECT_EQ(error_of(train({"--zzz"})), "unknown option \"--zzz\"; superoffload train --help lists the options");
  EXPECT_EQ(error_of(train({"--zzz", "eval"})),
            "unknown option \"--zzz\"; superoffload train --help lists the options");
  EXPECT_EQ(error_of(train({"--pin_memory", "false"})),
            "--pin_memory is set in the DeepSpeed file, as zero_optimization.offload_optimizer.pin_memory, "
            "not on the command line");
  EXPECT_EQ(parsed(train({"--offload_ratio", "0.5"})).offload_ratio, 0.5);
  EXPECT_EQ(parsed(train({"--mode", "zerooffload"})).mode, OffloadMode::zerooffload);
  EXPECT_EQ(parsed(train({"--optimizer_state_dtype", "bf16", "--adam_beta2", "0.99"})).optimizer_state_dtype,
            StatePrecision::bf16);
  EXPECT_EQ(error_of(train({"--optimizer_state_dtype", "bf16"})).substr(0, 28), "--optimizer_state_dtype bf16");
  EXPECT_EQ(error_of(train({"--offload_ratio", "1.5"})).substr(0, 20), "--offload_ratio: 1.5");
  EXPECT_EQ(error_of(train({"extra"})),
            "unexpected argument \"extra\": values belong to an option (superoffload train --help)");
  EXPECT_EQ(error_of({"tran"}), "unknown command \"tran\"; did you mean train?");
  EXPECT_EQ(error_of({"bench"}),
            "bench is not a command alone: give one of bench step, bench ops, bench load (superoffload --help)");
  EXPECT_EQ(error_of({"bench", "setp"}),
            "bench has no \"setp\": give one of bench step, bench ops, bench load (superoffload --help)");
  EXPECT_EQ(error_of({"bench_step"}).substr(0, 28), "unknown command \"bench_step\"");
  EXPECT_EQ(error_of({}),
            "a command is missing: give one of train, init, eval, generate, chat, report, tokenize, plan, "
            "profile, doctor, verify, cache, bench step, bench ops, bench load, completion (superoffload --help)");
  EXPECT_EQ(error_of({"--model", "m"}),
            "unknown option \"--model\"; the commands are train, init, eval, generate, chat, report, "
            "tokenize, plan, profile, doctor, verify, cache, bench step, bench ops, bench load, completion");
}

TEST(Parse, MissingAndRepeatedValues) {
  EXPECT_EQ(error_of({"train", "--model", "--data", "d"}),
            "--model needs a value, and the next word is the option --data");
  EXPECT_EQ(error_of({"train", "--model"}), "--model needs a value");
  EXPECT_EQ(error_of({"train", "--data", "d"}), "missing --model DIR, --output_dir DIR");
  EXPECT_EQ(error_of(train({"--seed", "1", "--seed", "2"})), "--seed is given 2 times; give it once");
  EXPECT_EQ(error_of(train({"--lr", "0"})), "--lr: 0 is out of range; it must be a number >= 1e-30 and <= 1000");
  EXPECT_EQ(error_of(train({"--lr="})), "--lr: \"\" is not a number");
}

TEST(Parse, OriginsTellGivenFromDefault) {
  const ParsedCommand p = parse_command_line(train({"--max_length", "2048"}));
  EXPECT_TRUE(p.origins.given("max_length"));  // although it is the default's value
  EXPECT_FALSE(p.origins.given("lr"));
}

TEST(Parse, AppliesTheDeepSpeedFile) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "so_cli_parse_test.json";
  std::ofstream(file) << R"({"train_batch_size": 12, "gradient_clipping": 0.5, "bf16": {"enabled": true}})";
  const Words words = train({"--deepspeed_config", file.string(), "--max_grad_norm", "2"});
  const ParsedCommand p = parse_command_line(words, 3);
  Words with_mode = words;
  with_mode.insert(with_mode.end(), {"--mode", "superoffload"});
  const ParsedCommand q = parse_command_line(with_mode, 3);
  std::filesystem::remove(file);
  const auto& options = p.as<TrainOptions>();
  EXPECT_EQ(options.batch_size, 4);  // 12 over 3 ranks
  EXPECT_EQ(options.max_grad_norm, 2);
  EXPECT_EQ(options.dtype, Precision::bf16);
  const std::string log = settings_log(train_option_table().view(options), p.origins);
  EXPECT_NE(log.find("overrides: " + file.string() + ": gradient_clipping says 0.5"), std::string::npos) << log;
  EXPECT_EQ(options.mode, OffloadMode::zerooffload);  // as a file without super_offload has it
  EXPECT_EQ(q.as<TrainOptions>().mode, OffloadMode::superoffload);
  EXPECT_EQ(error_of(words), "cannot open " + file.string() + ": No such file or directory; check --deepspeed_config");
}

TEST(Parse, AppliesTheRunFile) {
  const test::TemporaryDirectory directory;
  const std::string file = (directory.path() / "run.yaml").string(), ds = (directory.path() / "ds.json").string();
  std::ofstream(ds) << R"({"gradient_clipping": 0.5, "optimizer": {"type": "AdamW", "params": {"lr": 0.5}}})";
  std::ofstream(file) << "model: m\ndata: d\noutput_dir: o\nmax_grad_norm: 3\nseed: 7\ngpus: 2\nresume: latest\n"
                      << "deepspeed_config: " << ds << "\n";
  const Words words = {"train", "--config", file, "--seed", "8"};
  const ParsedCommand p = parse_command_line(words);  // required options may come from the file
  const auto& options = p.as<TrainOptions>();
  EXPECT_EQ(options.model, "m");
  EXPECT_EQ(options.max_grad_norm, 3);
  EXPECT_EQ(options.lr, 0.5);
  EXPECT_EQ(options.seed, 8);
  EXPECT_EQ(p.command->asked_ranks(p.options.get()), 2);
  const std::string log = settings_log(p.view(), p.origins);
  EXPECT_NE(log.find("overrides: " + file + ":5: seed says 7"), std::string::npos) << log;
  EXPECT_NE(log.find("overrides: " + ds + ": gradient_clipping says 0.5"), std::string::npos) << log;

  // A file may say the default of what a mode leaves idle, and nothing else of it.
  std::ofstream(file) << "model: m\ndata: d\noutput_dir: o\nprofile: cached\n";
  EXPECT_EQ(error_of(words + Words{"--device", "cpu"}), "accepted");
  std::ofstream(file) << "model: m\ndata: d\noutput_dir: o\nprofile: fresh\n";
  EXPECT_NE(error_of(words + Words{"--device", "cpu"}).find("--profile has nothing to do with --device cpu"),
            std::string::npos);
  std::ofstream(file) << "model: m\ndata: d\nlr: 1\n";
  EXPECT_EQ(error_of(words), "missing --output_dir DIR");
  std::filesystem::remove(file);
  EXPECT_EQ(error_of(words), "cannot open " + file + ": No such file or directory; check --config");
}

// The printed file needs nothing, runs nothing, and stands for the line that printed it.
TEST(Parse, PrintsTheRunFile) {
  const test::TemporaryDirectory directory;
  const std::string file = (directory.path() / "run.yaml").string();
  const ParsedCommand printed = parse_command_line({"train", "--print_config"});
  EXPECT_EQ(printed.command, nullptr);
  EXPECT_NE(printed.text.find("\n# lr: 1e-05\n"), std::string::npos);
  std::ofstream(file) << parse_command_line(train({"--lr", "3e-5", "--packing", "--print_config"})).text;
  const ParsedCommand p = parse_command_line({"train", "--config", file});
  EXPECT_EQ(to_json(p.view()), [&] {
    Words words = train({"--lr", "3e-5", "--packing", "--config", file});
    return to_json(parse_command_line(words).view());
  }());
  EXPECT_EQ(p.as<TrainOptions>().lr, 3e-5);
  EXPECT_TRUE(p.as<TrainOptions>().packing);
}

TEST(Parse, HelpHasSeveralSpellings) {
  const auto text = [](const Words& words) { return parse_command_line(words).text; };
  EXPECT_EQ(text({"help"}), program_help());
  EXPECT_EQ(text({"help", "--help"}), program_help());
  EXPECT_EQ(text({"help", "train"}), command_help(*find_command("train")));
  EXPECT_EQ(text({"help", "bench", "step"}), command_help(*find_command("bench step")));
  EXPECT_EQ(text({"bench", "step", "-h"}), command_help(*find_command("bench step")));
  for (const Words& words : {Words{"bench", "--help"}, {"bench", "-h"}, {"help", "bench"}}) {
    EXPECT_EQ(text(words), group_help("bench"));
    EXPECT_NE(text(words).find("bench load"), std::string::npos);
  }
  EXPECT_EQ(text({"-V"}), program_version());
  EXPECT_EQ(text({"--version"}), program_version());
  EXPECT_EQ(error_of({"help", "trian"}), "unknown command \"trian\"; did you mean train?");
  EXPECT_EQ(error_of({"help", "--lr"}).rfind("unknown option \"--lr\"", 0), 0u);
  EXPECT_EQ(error_of({"bench"}),
            "bench is not a command alone: give one of bench step, bench ops, bench load "
            "(superoffload --help)");
}

TEST(Parse, ArgvSkipsTheProgramsName) {
  const char* argv[] = {"superoffload", "tokenize", "--model", "m", "--text", "t"};
  EXPECT_EQ(to_string(parse_command_line(6, argv).view().get("text")), "t");
  EXPECT_THROW(parse_command_line(1, argv), Error);
  EXPECT_THROW(parse_command_line(0, nullptr), Error);
}

TEST(Parse, GeneratesFromOnePrompt) {
  const Words generate = {"generate", "--model", "m"};
  EXPECT_EQ(error_of(generate), "missing --prompt or --prompt_file or --messages");
  EXPECT_EQ(error_of(generate + Words{"--prompt", ""}), "accepted");  // an empty prompt is a prompt
  EXPECT_EQ(error_of(generate + Words{"--prompt", "p", "--prompt_file", "f"}),
            "--prompt and --prompt_file exclude each other: give one of them");
  EXPECT_EQ(error_of(generate + Words{"--prompt", "p", "--top_p", "0.5"}),
            "--top_p has nothing to do with --temperature 0, where generation is greedy: remove one of them");
  EXPECT_EQ(error_of(generate + Words{"--prompt", "p", "--top_p", "0.5", "--temperature", "0.7"}), "accepted");
}

TEST(Parse, TokenizesOneSource) {
  const Words tokenize = {"tokenize", "--model", "m"};
  const std::string missing = "missing --text or --file or --stdin or --decode or --show";
  EXPECT_EQ(error_of(tokenize), missing);
  EXPECT_EQ(error_of(tokenize + Words{"--stdin", "false"}), missing);
  EXPECT_EQ(error_of(tokenize + Words{"--stdin"}), "accepted");
  EXPECT_EQ(error_of(tokenize + Words{"--stdin", "--decode", "1"}),
            "--stdin and --decode exclude each other: give one of them");
}

std::string shown(const Words& words) { return parse_command_line(words).text; }

TEST(Help, IsShownWhereverItIsAskedFor) {
  EXPECT_EQ(shown({"--help"}), program_help());
  EXPECT_EQ(shown({"-h"}), program_help());
  EXPECT_EQ(shown({"--version"}), "superoffload " SO_VERSION "\n" + build_text() + "\n");
  for (const Command& command : all_commands()) {
    EXPECT_EQ(shown(words_of(command) + Words{"--help"}), command_help(command));
    EXPECT_EQ(shown(words_of(command) + Words{"--nonsense", "-h"}), command_help(command));
    EXPECT_NE(program_help().find(std::string(command.name) + "  "), std::string::npos);
  }
}

TEST(Help, Suffices) {
  for (const Command& command : all_commands()) {
    const std::string help = command_help(command);
    SCOPED_TRACE(help);
    for (const OptionSpec& spec : command.rows->specs()) {
      EXPECT_NE(help.find((spec.is_file_only ? "  " : "  --") + spec.name), std::string::npos) << spec.name;
      EXPECT_TRUE(!spec.is_required || usage(command).find("--" + spec.name) != std::string::npos) << spec.name;
    }
    for (const char* part : {"Examples:\n", "Exit codes:\n", "\n  130  "})
      EXPECT_NE(help.find(part), std::string::npos) << part;
  }
}

// The examples of --help must be accepted as they stand.
TEST(Help, ExamplesAreValid) {
  const std::filesystem::path here = std::filesystem::current_path();
  const std::filesystem::path scratch = std::filesystem::path(testing::TempDir()) / "so_help_examples";
  std::filesystem::create_directories(scratch);
  std::ofstream(scratch / "ds_config.json") << "{}";
  std::ofstream(scratch / "run.yaml") << "model: m\ndata: d\noutput_dir: o\n";
  std::filesystem::current_path(scratch);
  for (const Command& command : all_commands()) {
    for (const std::string_view example : command.examples) {
      Words words;  // split at spaces outside double quotes, as a shell would
      bool inside = false, open = false;
      for (const char c : example) {
        if (c == '"')
          inside = !inside;
        else if (c == ' ' && !inside)
          open = false;
        else {
          if (!open) words.emplace_back();
          open = true;
          words.back() += c;
        }
      }
      ASSERT_EQ(words.front(), "superoffload");
      words.erase(words.begin());
      EXPECT_EQ(error_of(words), "accepted") << example;
    }
  }
  std::filesystem::current_path(here);
  std::filesystem::remove_all(scratch);
}

}  // namespace
}  // namespace so
