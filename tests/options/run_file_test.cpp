// The YAML file of a run's options.
#include "options/run_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "options/train_options.h"
#include "support/errors.h"
#include "support/files.h"

namespace so {
namespace {

struct Read {
  TrainOptions options;
  OptionOrigins origins;
  OptionsRef ref() { return train_option_table().ref(options); }
};

Read read(std::string_view text) {
  Read r;
  apply_run_text(text, "run.yaml", r.ref(), r.origins);
  return r;
}

std::string refusal_of(std::string_view text) {
  return test::refusal([&] { read(text); });
}

TEST(RunFile, SetsOptionsOfEveryKind) {
  const Read r = read(R"(# a run
model: Qwen3-0.6B        # with a comment behind it
data: "al: paca.json"
output_dir: 'it''s out'
lr: 2e-5
batch_size: 2
offload_optimizer: none
packing: True
shuffle: false
host_memory: 20GB
max_steps: -1
resume: latest
eval_data: null
seed: ~
)");
  EXPECT_EQ(r.options.model, "Qwen3-0.6B");
  EXPECT_EQ(r.options.data, "al: paca.json");
  EXPECT_EQ(r.options.output_dir, "it's out");
  EXPECT_EQ(r.options.lr, 2e-5);
  EXPECT_EQ(r.options.batch_size, 2);
  EXPECT_EQ(r.options.offload_optimizer, OptimizerDevice::none);
  EXPECT_TRUE(r.options.packing);
  EXPECT_FALSE(r.options.shuffle);
  EXPECT_EQ(r.options.host_memory, 20'000'000'000);
  EXPECT_FALSE(r.options.max_steps);
  EXPECT_EQ(r.options.resume, "latest");
  EXPECT_FALSE(r.options.eval_data);
  EXPECT_EQ(r.options.seed, 42);
  EXPECT_EQ(r.origins.of("lr").origin, Origin::run_file);
  EXPECT_EQ(r.origins.of("lr").where, "run.yaml:5: lr");
  EXPECT_FALSE(r.origins.given("eval_data"));
  EXPECT_FALSE(r.origins.given("seed"));
}

// A file of an earlier version may name an option that has gone, with a value that asks for nothing.
TEST(RunFile, MayNameAnOptionThatHasGone) {
  for (const char* value : {"false", "auto", "~", "\"auto\""})
    EXPECT_EQ(read("late_embedding: " + std::string(value) + "\nlr: 2e-5\n").options.lr, 2e-5) << value;
  for (const char* value : {"true", "[false]", "maybe"})
    EXPECT_NE(refusal_of("late_embedding: " + std::string(value)).find("no option late_embedding"), std::string::npos);
}

TEST(RunFile, OtherFormsOfTheSame) {
  for (const char* text : {"{lr: 2e-5, \"batch_size\": 2}", "---\nlr: 2e-5\nbatch_size: 2\n",
                           "%YAML 1.2\n---\nlr: 2e-5\n? batch_size\n: 2\n",
                           "\xef\xbb\xbf"
                           "lr: 2e-5\r\nbatch_size: 2\r\n",
                           "lr: 2e-5\nbatch_size: 2\n...\n"}) {
    const Read r = read(text);
    EXPECT_EQ(r.options.lr, 2e-5) << text;
    EXPECT_EQ(r.options.batch_size, 2) << text;
  }
  for (const char* text : {"", "# nothing\n", "---\n", "{}", "null"})
    EXPECT_FALSE(read(text).origins.given("lr")) << text;
}

// Options that take several things with commas between them take them as YAML's lists too.
TEST(RunFile, Lists) {
  Read r = read(
      "data:\n  - a.jsonl\n  - 'b c/'\ndata_weights: [2, 0.5]\nfreeze: [\"*norm.weight\"]\n"
      "lr_multiplier:\n- model.embed_tokens.*=0.1\n- lm_head.weight=2\neval_data:\n- c\nlr: 1e-4\n");
  EXPECT_EQ(r.options.data, "a.jsonl,b c/");
  EXPECT_EQ(r.options.data_weights, "2,0.5");
  EXPECT_EQ(r.options.freeze, "*norm.weight");
  EXPECT_EQ(r.options.lr_multiplier, "model.embed_tokens.*=0.1,lm_head.weight=2");
  EXPECT_EQ(r.options.eval_data, "c");
  EXPECT_EQ(r.options.lr, 1e-4);
  EXPECT_EQ(r.origins.of("lr_multiplier").where, "run.yaml:7: lr_multiplier");
  const Read again = read(run_file_text(train_option_table().view(r.options), r.origins));
  EXPECT_EQ(again.options.data, r.options.data);
  EXPECT_EQ(again.options.lr_multiplier, r.options.lr_multiplier);
}

// An alias is what its anchor marks; tags, signs and other bases are YAML's.
TEST(RunFile, WhatYamlHasElse) {
  const Read r = read(R"(%YAML 1.2
--- &all
seed: &s +4
batch_size: *s
lr: +2e-5
eval_data: &d [a, &b b]
data: *d
output_dir: *b
max_steps: 0x10
save_steps: !!int 0o17
packing: !!bool TRUE
model: !!str null
dtype: >-
  bf16
weight_decay: !!float 0
freeze: [
  "*norm.weight"
]
)");
  EXPECT_EQ(r.options.seed, 4);
  EXPECT_EQ(r.options.batch_size, 4);
  EXPECT_EQ(r.origins.of("batch_size").where, "run.yaml:4: batch_size");
  EXPECT_EQ(r.options.lr, 2e-5);
  EXPECT_EQ(r.options.eval_data, "a,b");
  EXPECT_EQ(r.options.data, "a,b");
  EXPECT_EQ(r.options.output_dir, "b");
  EXPECT_EQ(r.options.max_steps, 16);
  EXPECT_EQ(r.options.save_steps, 15);
  EXPECT_TRUE(r.options.packing);
  EXPECT_EQ(r.options.model, "null");
  EXPECT_EQ(r.options.dtype, Precision::bf16);
  EXPECT_EQ(r.options.weight_decay, 0);
  EXPECT_EQ(r.options.freeze, "*norm.weight");
  EXPECT_FALSE(read("eval_data: !!null x").origins.given("eval_data"));
  EXPECT_EQ(read("&k lr: 1\n").options.lr, 1);
}

// The command line over the run file, and that over a DeepSpeed file; the one that loses is noted.
TEST(RunFile, WinsOverADeepSpeedFileAndNotOverTheCommandLine) {
  Read r;
  const OptionSpec& lr = r.ref().rows().at("lr");
  const OptionSpec& decay = r.ref().rows().at("weight_decay");
  assign(r.ref(), r.origins, lr, 1e-3, Origin::command_line, "");
  apply_run_text("lr: 2e-5\nweight_decay: 0.5", "run.yaml", r.ref(), r.origins);
  assign(r.ref(), r.origins, decay, 0.25, Origin::file, "ds.json: optimizer.params.weight_decay");
  EXPECT_EQ(r.options.lr, 1e-3);
  EXPECT_EQ(r.options.weight_decay, 0.5);
  EXPECT_EQ(r.origins.of("lr").overridden, "run.yaml:1: lr says 2e-05");
  EXPECT_EQ(r.origins.of("weight_decay").overridden, "ds.json: optimizer.params.weight_decay says 0.25");
}

TEST(RunFile, RefusalsNameTheLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"lr: 2e-5\nnum_epochs: 1", "run.yaml:2: unknown option \"num_epochs\"; here it is num_train_epochs"},
      {"lr: 2e-5\nlearning_rate: 1", "run.yaml:2: learning_rate is there twice, in line 1 too"},
      {"batch_sise: 2", "run.yaml:1: unknown option \"batch_sise\"; did you mean batch_size?"},
      {"zzzzzzzzzzzzzzzz: 2", "run.yaml:1: unknown option \"zzzzzzzzzzzzzzzz\""},
      {"pin_memory: true",
       "run.yaml:1: pin_memory is set in the DeepSpeed file, as zero_optimization.offload_optimizer.pin_memory, not "
       "here"},
      {"config: other.yaml", "run.yaml:1: config belongs to the command line"},
      {"print_config: true", "run.yaml:1: print_config belongs to the command line"},
      {"lr: 1\nseed: 1\nlr: 2", "run.yaml:3: lr is there twice, in line 1 too"},
      {"lr: fast", "run.yaml:1: lr: \"fast\" is not a number"},
      {"lr: -1", "run.yaml:1: lr: -1 is out of range; it must be a number >= 1e-30 and <= 1000"},
      {"packing: \"True\"", "run.yaml:1: packing: \"True\" is neither true nor false"},
      {"packing: yes", "run.yaml:1: packing: \"yes\" is neither true nor false"},
      {"model: [a, b]", "run.yaml:1: model is a list, and the value of an option is plain"},
      {"data: []", "run.yaml:1: data is an empty list"},
      {"data:\n- a\n- \"\"\n", "run.yaml:3: an item of the list data is empty"},
      {"data: [a, ~]", "run.yaml:1: an item of the list data is empty"},
      {"data: [a, [b]]", "run.yaml:1: data is a list of lists, and its value is plain, or a list of plain values"},
      {"data: [path: a]", "run.yaml:1: data is a mapping, and its value is plain, or a list of plain values"},
      {"data: [a, \"b,c\"]",
       "run.yaml:1: \"b,c\" in the list data has a comma, and commas stand between items; write it as two items"},
      {"data_weights:\n- 1\n- !!bool 2",
       "run.yaml:3: data_weights has the tag \"tag:yaml.org,2002:bool\", which is not for its values"},
      {"data: !x [a]", "run.yaml:1: the tag \"!x\" on a list is not known"},
      {"eval_data: &d [a]\ndata: [*d]",
       "run.yaml:2: data is a list of lists, and its value is plain, or a list of plain values"},
      {"seed: \"+4\"", "run.yaml:1: seed: \"+4\" is not a whole number"},
      {"seed: +-4", "run.yaml:1: seed: \"+-4\" is not a whole number"},
      {"seed: 0x", "run.yaml:1: seed: \"0x\" is not a whole number"},
      {"seed: 0xfffffffffffffffff", "run.yaml:1: seed: \"0xfffffffffffffffff\" is not a whole number"},
      {"scheduler:\n  lr: 1", "run.yaml:1: unknown option \"scheduler\"; did you mean lr_scheduler?"},
      {"optimizer: adamw_torch", "run.yaml:1: there is no option optimizer: the optimizer is AdamW; remove it"},
      {"late_embedding: true",
       "run.yaml:1: there is no option late_embedding: the optimizer state of an embedding is placed and updated as that "
       "of every layer is; remove it"},
      {"lr: 1\nlora_r: 8",
       "run.yaml:2: there is no option lora_r: all parameters are trained, without adapters; freeze leaves some of them "
       "out; remove it"},
      {"bench_steps: 10",
       "run.yaml:1: there is no option bench_steps: superoffload bench step measures steps, and saves nothing; remove it"},
      {"warmup_steps: 20",
       "run.yaml:1: there is no option warmup_steps: warmup_num_steps, or warmup as a share of the run, is the learning "
       "rate's; bench step has its own warm-up; remove it"},
      {"data:\n  file: a", "run.yaml:2: data is a mapping, and its value is plain, or a list of plain values"},
      {"- lr: 1", "run.yaml:1: a list stands where the name of an option should"},
      {"{[a]: 1}", "run.yaml:1: a list stands where the name of an option should"},
      {"{{a: b}: 1}", "run.yaml:1: a mapping stands where the name of an option should"},
      {"? [a]\n: 1", "run.yaml:1: a list stands where the name of an option should"},
      {"~: 1", "run.yaml:1: the name of an option is missing"},
      {"lr: 1\nseed: *a", "run.yaml:2: *a names an anchor, and no &a stands before it"},
      {"lr: !!bool 1", "run.yaml:1: lr has the tag \"tag:yaml.org,2002:bool\", which is not for its values"},
      {"just text", "run.yaml:1: the file is one value, and should be options, as in \"lr: 2e-5\""},
      {"lr: 1\n---\nlr: 2", "run.yaml:2: one document is read, and there is another behind \"---\""},
  };
  for (const auto& [text, message] : cases) {
    SCOPED_TRACE(text);
    EXPECT_EQ(refusal_of(text), message);
  }
}

// Every option with a value of its own goes through the file and comes back.
TEST(RunFile, WhatIsPrintedReadsBack) {
  Read r;
  for (const OptionSpec& spec : r.ref().rows().specs()) {
    if (spec.is_file_only || spec.name == "config" || spec.name == "print_config") continue;
    OptionValue value = spec.default_value;
    if (spec.kind == OptionKind::boolean) value = !std::get<bool>(value);
    if (spec.kind == OptionKind::integer && spec.lower >= 1) value = static_cast<std::int64_t>(spec.lower) + 1;
    if (spec.kind == OptionKind::choice) value = spec.choices.back();
    if (spec.kind == OptionKind::text) value = "# a: \"b\"\n'c' \t\xc3\xa4 - " + spec.name;
    assign(r.ref(), r.origins, spec, value, Origin::command_line, "");
  }
  const std::string text = run_file_text(r.ref(), r.origins);
  Read again = read(text);
  for (const OptionSpec& spec : r.ref().rows().specs()) {
    EXPECT_EQ(again.ref().get(spec), r.ref().get(spec)) << spec.name;
    EXPECT_EQ(again.origins.given(spec.name), r.origins.given(spec.name)) << spec.name;
  }
  for (const char* awkward :
       {"null", "~", "true", "", " ", "-", "*a", "&a", "1e5", "a #b", "a: b", "[", "%x", "@", "`"}) {
    Read one;
    assign(one.ref(), one.origins, one.ref().rows().at("data"), std::string(awkward), Origin::command_line, "");
    EXPECT_EQ(read(run_file_text(one.ref(), one.origins)).options.data, awkward);
  }
}

TEST(RunFile, TextsThatYamlCannotHoldAreRefused) {
  for (const std::string text : {"it's: a\x8b", "a\xf5\x93r", "\xe4", "a: \xed\xa0\x80", "\xc3"}) {
    SCOPED_TRACE(text);
    Read r;
    assign(r.ref(), r.origins, r.ref().rows().at("data"), text, Origin::command_line, "");
    std::string message;
    try {
      run_file_text(r.ref(), r.origins);
    } catch (const Error& error) {
      message = error.what();
    }
    test::expect_in(message, {"--data: \"", "has bytes that a YAML file cannot hold", "command line"});
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
  // Control characters are escaped.
  for (const std::string& text : {std::string("a\x01: b"), std::string("\x1b[0m"), std::string("a\rb"),
                                  std::string("a\0b", 3), std::string("a\nb: \n"), std::string("\x7f\xc2\x85")}) {
    SCOPED_TRACE(text);
    Read r;
    assign(r.ref(), r.origins, r.ref().rows().at("data"), text, Origin::command_line, "");
    EXPECT_EQ(read(run_file_text(r.ref(), r.origins)).options.data, text);
  }
}

TEST(RunFile, AFileThatIsNotUtf8IsRefusedWithTheLine) {
  EXPECT_EQ(refusal_of("lr: 1\ndata: a\xe4.jsonl\n"),
            "run.yaml:2: the file is not UTF-8, as YAML is; an option with such bytes belongs on the command line");
}

// Of a run to which nothing was given all lines are comments, and each option has one.
TEST(RunFile, DefaultsAreComments) {
  Read r;
  const std::string text = run_file_text(r.ref(), r.origins);
  for (const OptionSpec& spec : r.ref().rows().specs()) {
    const bool expected = !spec.is_file_only && spec.name != "config" && spec.name != "print_config";
    EXPECT_EQ(text.find("\n# " + spec.name + ": ") != std::string::npos, expected) << spec.name;
  }
  EXPECT_NE(text.find("\n# lr: 1e-05\n"), std::string::npos);
  EXPECT_NE(text.find("\n# model: DIR\n"), std::string::npos);
  Read uncommented;
  apply_run_text(text, "run.yaml", uncommented.ref(), uncommented.origins);
  for (const OptionSpec& spec : r.ref().rows().specs()) EXPECT_FALSE(uncommented.origins.given(spec.name));
}

TEST(RunFile, OfAFile) {
  const test::TemporaryDirectory directory;
  Read r;
  std::ofstream(directory.path() / "a.yaml") << "lr: 0.5\n";
  apply_run_file((directory.path() / "a.yaml").string(), r.ref(), r.origins);
  EXPECT_EQ(r.options.lr, 0.5);
  EXPECT_THROW(apply_run_file((directory.path() / "none.yaml").string(), r.ref(), r.origins), std::exception);
  std::ofstream(directory.path() / "large.yaml") << std::string(2 << 20, '#');
  EXPECT_THROW(apply_run_file((directory.path() / "large.yaml").string(), r.ref(), r.origins), Error);
}

}  // namespace
}  // namespace so
