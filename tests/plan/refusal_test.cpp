// A refusal proposes changes: each makes the plan fit, none is larger than it must be, and the search makes few
// plans.
#include "plan/refusal.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "base/quantities.h"
#include "io/presets.h"
#include "model/config.h"
#include "model/parameters.h"
#include "options/train_options.h"
#include "plan/gpu_rates.h"
#include "plan/machine/hardware.h"
#include "plan/row_step.h"
#include "support/errors.h"
#include "support/label.h"

namespace so::test {
namespace {

// A preset on a machine that is not there, 4 x 4096 tokens a step unless said otherwise.
struct Planned {
  Planned(const char* preset, const Backend& kind, double device_gb, double host_gb)
      : config(resolve_config(preset)),
        spec(read_decoder_spec(config.text, config.origin)),
        layout(make_parameters(spec)),
        pool("host", {}, false) {
    machine.backend = &kind;
    machine.name = "Fake";
    if (kind.own_memory) machine.device_memory = static_cast<std::size_t>(device_gb * 1e9);
    machine.whole_device_memory = machine.device_memory;
    machine.host = {static_cast<std::size_t>(host_gb * 1e9), "free memory"};
    machine.pool = &pool;
    machine.rates = [] { return gpu_rates(1.2e11); };
    asked.batch_size = 4;
    asked.max_length = 4096;
    asked.cast_side = CastChoice::host;
  }
  PlanQuestion question() const {
    PlanQuestion q =
        make_question({spec, layout, machine, WeightOrigin::files, row_shape}, asked, train_option_table());
    q.askable = {std::size_t{1} << 50, std::size_t{1} << 50};
    q.seconds = 3600;  // whatever else the machine does
    return q;
  }
  ModelConfig config;
  DecoderSpec spec;
  ParameterLayout layout;
  ThreadPool pool;
  PlanningMachine machine;
  PlanKnobs asked;
};

PlanKnobs changed(PlanKnobs knobs, const PlanChange& change) {
  for (const auto& [name, value] : change.options) {
    if (name == "batch_size") knobs.batch_size = std::stoll(value);
    if (name == "gradient_accumulation_steps") knobs.gradient_accumulation_steps = std::stoll(value);
    if (name == "max_length") knobs.max_length = std::stoll(value);
    if (name == "activation_checkpointing") knobs.activation_checkpointing = Toggle::automatic;
    if (name == "grad_accum_dtype") knobs.grad_accum_dtype = SumPrecision::bf16;
    if (name == "optimizer_state_dtype")
      knobs.optimizer_state_dtype = value == "fp8" ? StatePrecision::fp8 : StatePrecision::bf16;
    if (name == "offload_optimizer") knobs.offload_optimizer = OptimizerDevice::cpu;
    if (name == "offload_ratio") knobs.offload_ratio.reset();
    if (name == "move_gradients") knobs.move_gradients = Toggle::automatic;
    if (name == "device_memory") knobs.memory.device = static_cast<std::size_t>(*parse_bytes(value));
    if (name == "host_memory") knobs.memory.host = static_cast<std::size_t>(*parse_bytes(value));
    if (name == "freeze") knobs.freeze = value;
  }
  return knobs;
}

bool names(const PlanChange& change, const char* option) {
  for (const auto& [name, value] : change.options)
    if (name == option) return true;
  return false;
}

std::vector<PlanChange> changes_of(const Planned& planned) {
  const PlanQuestion question = planned.question();
  try {
    question.plan(planned.asked);
  } catch (const MemoryRefusal&) {
    EXPECT_FALSE(question.fits(planned.asked)(planned.asked.memory));
    const std::vector<PlanChange> changes = find_changes(question);
    EXPECT_FALSE(changes.empty());
    for (const PlanChange& change : changes) {
      SCOPED_TRACE(change.text);
      EXPECT_FALSE(change.options.empty());
      EXPECT_NO_THROW(question.plan(changed(planned.asked, change))) << "what fits() says, plan() does";
      EXPECT_EQ(change.tokens_per_second.has_value(), planned.machine.backend->own_memory);
      // One more is too much.
      PlanKnobs more = changed(planned.asked, change);
      if (names(change, "gradient_accumulation_steps")) continue;
      if (names(change, "batch_size")) ++more.batch_size;
      if (names(change, "max_length")) more.max_length += 64;
      if (names(change, "device_memory")) *more.memory.device = *more.memory.device / 100 * 98;
      if (names(change, "host_memory")) *more.memory.host = *more.memory.host / 100 * 98;
      if (change.options.size() == 1 && (more.batch_size > 1 || more.memory.host || more.memory.device)) {
        EXPECT_EQ(question.fits(more)(more.memory), more.batch_size == planned.asked.batch_size &&
                                                        more.max_length == planned.asked.max_length &&
                                                        !more.memory.host && !more.memory.device)
            << "the smallest change";
      }
    }
    return changes;
  }
  ADD_FAILURE() << "it fits as it is";
  return {};
}

bool any(const std::vector<PlanChange>& changes, const char* option) {
  for (const PlanChange& change : changes)
    if (names(change, option)) return true;
  return false;
}

SO_LABEL(sweep, "PlanChanges.*");
TEST(PlanChanges, OfEachKind) {
  // Weights and state fit; activations do not, though layers' inputs wait on the host.
  Planned long_rows("qwen3-4b", cuda_backend(), 24, 128);
  long_rows.asked.batch_size = 32;
  const auto rows = changes_of(long_rows);
  for (const char* option : {"batch_size", "max_length", "gradient_accumulation_steps", "device_memory"})
    EXPECT_TRUE(any(rows, option)) << option;
  EXPECT_FALSE(any(rows, "host_memory")) << "of which there is enough";

  Planned kept("qwen3-4b", cuda_backend(), 40, 128);
  kept.asked.activation_checkpointing = Toggle::off;
  EXPECT_TRUE(any(changes_of(kept), "activation_checkpointing"));

  Planned device("qwen3-4b", cuda_backend(), 45, 128);
  device.asked.offload_optimizer = OptimizerDevice::none;
  device.asked.batch_size = 1;
  EXPECT_TRUE(any(changes_of(device), "offload_optimizer"));
  Planned ratio("qwen3-4b", cuda_backend(), 40, 128);
  ratio.asked.offload_ratio = 0.2;
  EXPECT_TRUE(any(changes_of(ratio), "offload_ratio"));

  Planned sums("qwen3-4b", cuda_backend(), 20, 128);
  sums.asked.gradient_accumulation_steps = 4;
  sums.asked.move_gradients = Toggle::off;
  const auto smaller_sums = changes_of(sums);
  EXPECT_TRUE(any(smaller_sums, "move_gradients"));

  EXPECT_TRUE(any(smaller_sums, "grad_accum_dtype"));
  EXPECT_FALSE(any(rows, "grad_accum_dtype")) << "nothing is added up";

  Planned host("qwen3-14b", cuda_backend(), 80, 120);
  const auto more = changes_of(host);
  EXPECT_TRUE(any(more, "host_memory"));
  EXPECT_TRUE(any(more, "optimizer_state_dtype"));
  EXPECT_TRUE(any(more, "adam_beta2")) << "with it";
  EXPECT_TRUE(any(more, "freeze"));
}

// What the machine has is the limit of what is asked of the device; host memory can be bought.
TEST(PlanChanges, NeverAskForMoreThanTheDeviceHas) {
  Planned planned("qwen3-4b", cuda_backend(), 20, 128);
  planned.asked.batch_size = 32;
  PlanQuestion question = planned.question();
  question.askable.device = planned.machine.device_memory;
  EXPECT_FALSE(any(find_changes(question), "device_memory"));
  question.askable.device = std::size_t{60'000'000'000};
  for (const PlanChange& change : find_changes(question))
    for (const auto& [name, value] : change.options)
      if (name == "device_memory") {
        EXPECT_LE(*parse_bytes(value), 60e9);
      }
  EXPECT_TRUE(any(find_changes(question), "device_memory"));
}

TEST(PlanChanges, MemoryToBuyIsAsMuchAsIsSold) {
  Planned planned("qwen3-14b", cuda_backend(), 80, 120);
  PlanQuestion question = planned.question();
  question.askable = {planned.machine.device_memory, std::numeric_limits<std::size_t>::max()};
  std::string host;
  for (const PlanChange& change : find_changes(question))
    for (const auto& [name, value] : change.options)
      if (name == "host_memory") host = value;
  EXPECT_EQ(host, "192GB") << "less does not fit";
  PlanKnobs less = planned.asked;
  less.memory.host = 128 * gigabyte;
  EXPECT_FALSE(question.fits(less)(less.memory));
  EXPECT_EQ(sold_for(128 * gigabyte), 128 * gigabyte);
  EXPECT_EQ(sold_for(128 * gigabyte + 1), 192 * gigabyte);
  EXPECT_EQ(sold_for(std::size_t{1} << 50), std::nullopt);
  // Two ranks of a host share what is bought.
  question.host_ranks = 2;
  host.clear();
  for (const PlanChange& change : find_changes(question))
    for (const auto& [name, value] : change.options)
      if (name == "host_memory") host = value;
  EXPECT_EQ(host, "384GB");
}

TEST(PlanChanges, SolderedMemoryIsNotToBuy) {
  for (const bool fixed : {false, true}) {
    Planned planned("qwen3-14b", cuda_backend(), 80, 120);
    planned.machine.fixed_memory = fixed;
    PlanQuestion question = planned.question();
    question.askable = {planned.machine.device_memory, planned.machine.host.available};
    std::string texts;
    for (const PlanChange& change : find_changes(question)) texts += change.text + "\n";
    EXPECT_EQ(texts.find("192GB of host memory") == std::string::npos, fixed) << texts;
    expect_in(texts, {"--optimizer_state_dtype bf16"});
  }
}

// A desktop with 24 GB and 64 GB, and the models that people would like to train on it.
TEST(PlanChanges, OnADesktop) {
  Planned llama("llama-3.1-8b", cuda_backend(), 24, 60);
  llama.asked.max_length = 2048;
  PlanQuestion question = llama.question();
  question.askable = {llama.machine.device_memory, std::numeric_limits<std::size_t>::max()};
  EXPECT_THROW(question.require_state(), MemoryRefusal);
  const auto changes = find_changes(question);
  EXPECT_TRUE(any(changes, "host_memory"));
  EXPECT_TRUE(any(changes, "freeze"));
  EXPECT_FALSE(any(changes, "device_memory"));
  EXPECT_FALSE(any(changes, "batch_size")) << "the state alone is too large";
  for (const PlanChange& change : changes) {
    SCOPED_TRACE(change.text);
    EXPECT_NO_THROW(question.plan(changed(llama.asked, change)));
    ASSERT_TRUE(change.tokens_per_second);
    EXPECT_NEAR(*change.tokens_per_second, *tokens_per_second(question.plan(change.knobs)), 1e-6);
    expect_in(line_of(change), {change.text + ": ", " tokens/s"});
  }

  Planned small("qwen3-0.6b", cuda_backend(), 24, 60);
  small.asked.max_length = 2048;
  EXPECT_NO_THROW(small.question().plan(small.asked));
  small.asked.batch_size = 256;
  const auto rows = find_changes(small.question());
  EXPECT_TRUE(any(rows, "gradient_accumulation_steps"));
  EXPECT_FALSE(any(rows, "host_memory"));
}

// What is made below the layers is frozen with the embedding, or a backward pass would go down to it.
TEST(PlanChanges, PatternsOfTheFirstLayersMatchAllBelowThem) {
  const Planned planned("gemma-4-e2b", cuda_backend(), 24, 60);
  const std::string pattern = first_layers_pattern(planned.layout, 12);
  const ParameterLayout layout(make_parameters(planned.spec, {.frozen = parse_patterns(pattern, "--freeze")}));
  EXPECT_EQ(layout.first_trained_unit(), 13) << pattern;
}

TEST(PlanChanges, PatternsOfTheFirstLayersMatchThese) {
  const Planned planned("qwen3-4b", cuda_backend(), 24, 60);
  EXPECT_EQ(first_layers_pattern(planned.layout, 0), "model.embed_tokens.*");
  EXPECT_EQ(first_layers_pattern(planned.layout, 1), "model.embed_tokens.*,model.layers.0.*");
  for (const int layers : {1, 2, 9, 10, 11, 12, 19, 20, 21, 30, 35}) {
    const std::string pattern = first_layers_pattern(planned.layout, layers);
    const ParameterLayout layout(make_parameters(planned.spec, {.frozen = parse_patterns(pattern, "--freeze")}));
    EXPECT_EQ(layout.first_trained_unit(), layers + 1) << pattern;
    EXPECT_EQ(layout.trained_elements(layers + 1), layout.unit_range(layers + 1).size()) << pattern;
  }
  EXPECT_EQ(text_of({{"freeze", "model.layers.[0-9].*"}, {"batch_size", "1"}}),
            "--freeze 'model.layers.[0-9].*' --batch_size 1");
  EXPECT_EQ(rate_text(1234567.6), "1,234,568 tokens/s");
  EXPECT_EQ(rate_text(999.4), "999 tokens/s");
}

TEST(PlanChanges, WhatIsFrozenOrLearnsAtARateOfItsOwnIsLeftAsItIs) {
  const Planned planned("qwen3-4b", cuda_backend(), 24, 60);
  EXPECT_EQ(planned.question().freezable.size(), 36u);
  const auto freezable = [&](const ParameterRules& rules) {
    const ParameterLayout layout(make_parameters(planned.spec, rules));
    return make_question({planned.spec, layout, planned.machine, WeightOrigin::files, row_shape}, planned.asked,
                         train_option_table())
        .freezable.size();
  };
  EXPECT_EQ(freezable({.frozen = {"*norm.weight"}}), 0u);
  EXPECT_EQ(freezable({.lr_multipliers = {{"*norm.weight", 2}}}), 0u);
}

// On every machine that is known, for a sixth of the models that are known, each of them on some: what is advised fits,
// and asks for no more of the device than it has.
SO_LABEL(sweep, "PlanAdvice.FitsOnEveryMachine");
TEST(PlanAdvice, FitsOnEveryMachine) {
  int refused = 0, advised = 0;
  std::set<std::pair<std::size_t, std::size_t>> seen;
  for (const KnownHardware& known : known_hardware()) {
    const HardwareProfile& hardware = known.profile;
    if (hardware.one_memory || !seen.emplace(hardware.device_memory, hardware.host_memory).second) continue;
    std::size_t turn = seen.size();  // each machine begins elsewhere
    for (const Preset& preset : model_presets()) {
      if (++turn % 6 != 0) continue;
      SCOPED_TRACE(fmt::format("{} on {}", preset.name, known.key));
      Planned planned(std::string(preset.name).c_str(), cuda_backend(),
                      static_cast<double>(hardware.device_memory) / 1e9,
                      static_cast<double>(hardware.host_memory) / 1e9);
      planned.machine.rates = [&] { return hardware.rates; };
      planned.asked.max_length = 2048;
      PlanQuestion question = planned.question();
      question.askable = {planned.machine.device_memory, std::numeric_limits<std::size_t>::max()};
      if (question.fits(planned.asked)(planned.asked.memory)) continue;
      ++refused;
      question.seconds = 0.5;
      for (const PlanChange& change : find_changes(question)) {
        SCOPED_TRACE(change.text);
        ++advised;
        EXPECT_FALSE(names(change, "device_memory"));
        EXPECT_FALSE(change.options.empty());
        const PlanKnobs knobs = changed(planned.asked, change);
        EXPECT_TRUE(question.fits(knobs)(knobs.memory));
      }
    }
  }
  EXPECT_GT(refused, 8);
  EXPECT_GT(advised, refused);
}

TEST(PlanChanges, OnTheCpuDeviceThereIsOneMemory) {
  Planned cpu("qwen3-0.6b", cpu_backend(), 0, 12);
  cpu.asked.batch_size = 16;
  const auto changes = changes_of(cpu);
  EXPECT_TRUE(any(changes, "host_memory"));
  EXPECT_TRUE(any(changes, "batch_size"));
  EXPECT_FALSE(any(changes, "device_memory"));
}

TEST(PlanChanges, SeveralTogetherWhereNoneHelpsAlone) {
  Planned both("qwen3-14b", cuda_backend(), 60, 125);
  both.asked.offload_ratio = 0.9;
  both.asked.activation_checkpointing = Toggle::off;
  const auto changes = changes_of(both);
  bool several = false;
  for (const PlanChange& change : changes) several |= change.options.size() > 2;
  EXPECT_TRUE(several);
}

TEST(PlanChanges, ARunThatGoesOnKeepsWhatItsResultsDependOn) {
  Planned planned("qwen3-4b", cuda_backend(), 24, 128);
  planned.asked.batch_size = 32;
  PlanQuestion question = planned.question();
  question.results_fixed = true;
  const auto changes = find_changes(question);
  for (const char* option : {"batch_size", "max_length", "gradient_accumulation_steps", "optimizer_state_dtype"})
    EXPECT_FALSE(any(changes, option)) << option;
  EXPECT_TRUE(any(changes, "device_memory"));
}

TEST(PlanChanges, MomentsIn8BitsWhereBf16DoesNotDo) {
  const auto offered = [](std::size_t host, StatePrecision asked) {
    Planned planned("qwen3-14b", cuda_backend(), 80, host);
    planned.asked.optimizer_state_dtype = asked;
    std::string all;
    for (const PlanChange& change : changes_of(planned))
      if (change.text.find("fp8") != std::string::npos) all += change.text + "\n";
    return all;
  };
  EXPECT_EQ(offered(120, StatePrecision::fp32), "") << "bf16 does";
  for (const auto& [host, asked] : {std::pair{std::size_t{65}, StatePrecision::fp32}, {65, StatePrecision::bf16}})
    EXPECT_NE(offered(host, asked).find("--optimizer_state_dtype fp8 (moments rounded to 8 bits"), std::string::npos)
        << host << ": " << offered(host, asked);
}

TEST(PlanChanges, AreNamedInTheRefusal) {
  Planned planned("qwen3-14b", cuda_backend(), 80, 120);
  try {
    plan_or_refuse(planned.question());
    ADD_FAILURE() << "accepted";
  } catch (const PlanRefusal& refusal) {
    expect_in(refusal.what(), {"not enough memory", "it would fit with --optimizer_state_dtype bf16"});
    EXPECT_GE(refusal.changes().size(), 2u);
  }
  // A change that no option can ask for is named all the same.
  PlanQuestion question = planned.question();
  question.results_fixed = true;
  question.askable = {};
  std::string texts;
  for (const PlanChange& change : find_changes(question)) {
    EXPECT_TRUE(change.options.empty());
    texts += change.text + "\n";
  }
  expect_in(texts, {"192GB of host memory, not 120.0 GB"});
  EXPECT_EQ(texts.find("device memory"), std::string::npos) << "of which no card has more than it has";
}

TEST(PlanChanges, AreSoughtNoLongerThanAllowed) {
  Planned large("llama-3.3-70b", cuda_backend(), 149, 134);
  PlanQuestion question = large.question();
  question.askable = {large.machine.device_memory, std::numeric_limits<std::size_t>::max()};
  int asked = 0;
  question.fits = [&, fits = question.fits](const PlanKnobs& knobs) {
    return [&asked, fits = fits(knobs)](const MemoryCaps& memory) { return ++asked, fits(memory); };
  };
  EXPECT_FALSE(find_changes(question).empty());
  EXPECT_GT(asked, 0);
  EXPECT_LE(asked, 60) << "plans made to find the changes";
  asked = 0;
  question.seconds = 0;
  EXPECT_TRUE(find_changes(question).empty()) << "proposes what was not seen to fit";
  EXPECT_EQ(asked, 0) << "no time, no plans";
}

}  // namespace
}  // namespace so::test
