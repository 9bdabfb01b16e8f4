#include "plan/refusal.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/quantities.h"

namespace so {
namespace {

using Options = std::vector<std::pair<std::string, std::string>>;

// "12.4GB": at most a hundredth more than `bytes`, and no less.
std::string rounded_up(std::size_t bytes) {
  double scale = 1;
  const char* unit = "B";
  for (const auto& [name, size] : {std::pair<const char*, double>{"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}})
    if (static_cast<double>(bytes) >= size) scale = size, unit = name;
  const double value = static_cast<double>(bytes) / scale;
  const double digits = scale == 1 || value >= 100 ? 1 : value >= 10 ? 10 : 100;
  return fmt::format("{:g}{}", std::ceil(value * digits) / digits, unit);
}

class Search {
 public:
  explicit Search(const PlanQuestion& question) : q_(question), limit_(question.seconds) {}

  std::vector<PlanChange> run() {
    const std::vector<Choice> choices = own_choices();
    for (const Choice& choice : choices) try_choice(choice);
    const auto narrower = [&](const Choice& choice) { return choice.less_state && helps_alone(choice); };
    if (std::none_of(choices.begin(), choices.end(), narrower)) fp8_moments();
    if (!numbers(q_.asked, {}))
      for (const Choice& choice : choices)
        if (choice.with_numbers && !helps_alone(choice)) numbers(choice.knobs, choice.options);
    if (changes_.empty()) together(choices);
    std::optional<std::size_t> host = memory(q_.asked, {});
    std::optional<std::int64_t> frozen = freeze(q_.asked, {}, most_frozen());
    for (const Choice& choice : choices) {
      if (!choice.less_state || helps_alone(choice)) continue;
      // Less memory to buy, or fewer layers to freeze, with less state.
      const std::size_t known = changes_.size();
      if (const auto less = least_host(choice.knobs); less && host && *less < *host)
        add_memory(choice.knobs, choice.options, std::nullopt, less);
      if (frozen) freeze(choice.knobs, choice.options, *frozen - 1);
      if (changes_.size() > known) break;
    }
    if (changes_.empty()) {
      // As little as can be asked for, with more memory.
      Choice least = all_of(choices, choices.size());
      if (allowed("batch_size") && least.knobs.batch_size > 1) {
        least.knobs.batch_size = 1;
        least.options.emplace_back("batch_size", "1");
      }
      if (!least.options.empty()) memory(least.knobs, least.options);
      freeze(least.knobs, least.options, most_frozen());
    }
    smaller_model();
    for (PlanChange& change : changes_) set_rate(change);
    return std::move(changes_);
  }

 private:
  struct Choice {
    PlanKnobs knobs;
    Options options;
    std::function<void(PlanKnobs&)> change;
    bool with_numbers = false;  // where neither helps alone, both may, and spare the choices that follow
    bool less_state = false;    // so that other changes need not be so large
  };

  bool in_time() const { return limit_.left(); }
  bool plans(PlanKnobs knobs, const MemoryCaps& memory) const {
    knobs.memory = memory;
    try {
      q_.plan(knobs);
      return true;
    } catch (const MemoryRefusal&) {
      return false;
    }
  }
  // Answers for any memory. Nothing is proposed that was not seen to fit.
  std::function<bool(const MemoryCaps&)> fitting(const PlanKnobs& knobs) const {
    std::function<bool(const MemoryCaps&)> fits;
    if (q_.fits && in_time()) fits = q_.fits(knobs);
    return [=, this](const MemoryCaps& memory) { return in_time() && (fits ? fits(memory) : plans(knobs, memory)); };
  }
  bool fits(const PlanKnobs& knobs) const { return fitting(knobs)(knobs.memory); }
  bool allowed(const char* option) const {
    const OptionSpec* spec = q_.rows->find(option);
    return spec && !(q_.results_fixed && spec->changes_results);
  }
  void add(Options options, const PlanKnobs& knobs) {
    std::string text = text_of(options);
    if (knobs.optimizer_state_dtype == StatePrecision::fp8 && q_.asked.optimizer_state_dtype != StatePrecision::fp8)
      text += " (moments rounded to 8 bits, which adds noise to updates)";
    changes_.push_back({std::move(options), std::move(text), knobs});
  }
  void try_choice(const Choice& choice) {
    if (fits(choice.knobs)) add(choice.options, choice.knobs);
  }
  void set_rate(PlanChange& change) {
    if (!in_time() || change.tokens_per_second) return;
    change.knobs.explain.clear();
    try {
      change.tokens_per_second = tokens_per_second(q_.plan(change.knobs));
    } catch (const MemoryRefusal&) {
    }
  }
  bool helps_alone(const Choice& choice) const {
    return std::any_of(changes_.begin(), changes_.end(),
                       [&](const PlanChange& change) { return change.options == choice.options; });
  }

  // All that need no other data at once, but for the one that is left out.
  Choice all_of(const std::vector<Choice>& choices, std::size_t left_out) const {
    Choice all{q_.asked, {}};
    for (std::size_t i = 0; i < choices.size(); ++i) {
      if (i == left_out) continue;
      choices[i].change(all.knobs);
      all.options.insert(all.options.end(), choices[i].options.begin(), choices[i].options.end());
    }
    return all;
  }
  // Nothing helps by itself but more memory: changes together, and numbers with them.
  void together(const std::vector<Choice>& choices) {
    if (choices.empty()) return;
    const Choice all = all_of(choices, choices.size());
    if (choices.size() > 1 && fits(all.knobs)) {
      add(all.options, all.knobs);
      // Fewer of them, where they do.
      for (std::size_t left = 0; choices.size() > 2 && left < choices.size(); ++left) try_choice(all_of(choices, left));
    }
    if (changes_.empty()) numbers(all.knobs, all.options);
  }

  // Changes that are not of a number.
  std::vector<Choice> own_choices() const {
    std::vector<Choice> choices;
    const auto offer = [&](Options options, std::function<void(PlanKnobs&)> change) {
      Choice choice{q_.asked, std::move(options), std::move(change)};
      choice.change(choice.knobs);
      choices.push_back(std::move(choice));
    };
    if (allowed("activation_checkpointing") && q_.asked.activation_checkpointing != Toggle::automatic)
      offer({{"activation_checkpointing", "auto"}},
            [](PlanKnobs& knobs) { knobs.activation_checkpointing = Toggle::automatic; });
    if (allowed("offload_optimizer") && q_.asked.offload_optimizer == OptimizerDevice::none)
      offer({{"offload_optimizer", "cpu"}, {"offload_ratio", "-1"}}, [](PlanKnobs& knobs) {
        knobs.offload_optimizer = OptimizerDevice::cpu;
        knobs.offload_ratio.reset();
      });
    else if (allowed("offload_ratio") && q_.asked.offload_ratio)
      offer({{"offload_ratio", "-1"}}, [](PlanKnobs& knobs) { knobs.offload_ratio.reset(); });
    if (allowed("streamed_layers") && q_.asked.streamed_layers)
      offer({{"streamed_layers", "-1"}}, [](PlanKnobs& knobs) { knobs.streamed_layers.reset(); });
    if (allowed("move_gradients") && q_.asked.move_gradients != Toggle::automatic)
      offer({{"move_gradients", "auto"}}, [](PlanKnobs& knobs) { knobs.move_gradients = Toggle::automatic; });
    if (allowed("gathered_layers") && q_.asked.gathered_layers && q_.asked.gpus > 1)
      offer({{"gathered_layers", "-1"}}, [](PlanKnobs& knobs) { knobs.gathered_layers.reset(); });
    const bool added_up = q_.asked.gpus > 1 || q_.asked.gradient_accumulation_steps > 1;
    if (allowed("grad_accum_dtype") && q_.asked.grad_accum_dtype == SumPrecision::fp32 && added_up &&
        number_formats(q_.asked).weights == DType::bf16) {
      offer({{"grad_accum_dtype", "bf16"}}, [](PlanKnobs& knobs) { knobs.grad_accum_dtype = SumPrecision::bf16; });
      choices.back().with_numbers = true;
    }
    if (allowed("optimizer_state_dtype") && q_.asked.optimizer_state_dtype == StatePrecision::bf16) {
      offer({{"optimizer_state_dtype", "fp8"}}, to_fp8);
      choices.back().less_state = true;
    } else if (allowed("optimizer_state_dtype") && q_.asked.optimizer_state_dtype == StatePrecision::fp32) {
      Options options{{"optimizer_state_dtype", "bf16"}};
      if (q_.rows->find("adam_beta2") && q_.asked.adam_beta2 > largest_beta2(StatePrecision::bf16))
        options.emplace_back("adam_beta2", "0.99");
      offer(std::move(options), [](PlanKnobs& knobs) { knobs.optimizer_state_dtype = StatePrecision::bf16; });
      choices.back().less_state = true;
    }
    return choices;
  }

  static void to_fp8(PlanKnobs& knobs) { knobs.optimizer_state_dtype = StatePrecision::fp8; }
  // Where bf16 does not do.
  void fp8_moments() {
    if (!allowed("optimizer_state_dtype") || q_.asked.optimizer_state_dtype != StatePrecision::fp32) return;
    Choice choice{q_.asked, {{"optimizer_state_dtype", "fp8"}}, to_fp8};
    choice.change(choice.knobs);
    try_choice(choice);
  }

  // The largest of least, least + step, ... below `bad` for which `with` makes knobs that fit.
  template <class With>
  std::optional<std::int64_t> largest(std::int64_t least, std::int64_t step, std::int64_t bad, const With& with) {
    if (least >= bad || !fits(with(least))) return std::nullopt;
    std::int64_t good = 0, beyond = (bad - least + step - 1) / step;  // steps
    while (beyond - good > 1 && in_time()) {
      const std::int64_t middle = good + (beyond - good) / 2;
      (fits(with(least + middle * step)) ? good : beyond) = middle;
    }
    return least + good * step;
  }

  // Fewer rows, in as many micro-batches more or not; shorter rows. Returns whether any of it helps.
  bool numbers(const PlanKnobs& from, const Options& before) {
    const std::size_t known = changes_.size();
    const auto add_with = [&](Options options, const PlanKnobs& knobs) {
      options.insert(options.begin(), before.begin(), before.end());
      add(std::move(options), knobs);
    };
    const std::int64_t rows = from.batch_size;
    if (allowed("gradient_accumulation_steps") && allowed("batch_size")) {
      // The same rows can be split in several ways; the first that fits has the fewest micro-batches.
      for (std::int64_t parts = 2; parts <= rows; ++parts) {
        if (rows % parts != 0) continue;
        PlanKnobs knobs = from;
        knobs.batch_size = rows / parts;
        knobs.gradient_accumulation_steps = from.gradient_accumulation_steps * parts;
        if (!fits(knobs)) continue;
        add_with({{"batch_size", std::to_string(knobs.batch_size)},
                  {"gradient_accumulation_steps", std::to_string(knobs.gradient_accumulation_steps)}},
                 knobs);
        break;
      }
    }
    if (allowed("batch_size")) {
      const auto with = [&](std::int64_t value) {
        PlanKnobs knobs = from;
        knobs.batch_size = value;
        return knobs;
      };
      if (const auto most = largest(1, 1, rows, with)) add_with({{"batch_size", std::to_string(*most)}}, with(*most));
    }
    if (allowed("max_length")) {
      const auto with = [&](std::int64_t value) {
        PlanKnobs knobs = from;
        knobs.max_length = value;
        return knobs;
      };
      const std::int64_t step = from.max_length > 256 ? 64 : 1;
      if (const auto most = largest(step == 1 ? 2 : step, step, from.max_length, with))
        add_with({{"max_length", std::to_string(*most)}}, with(*most));
    }
    return changes_.size() > known;
  }

  // The least of one memory, the other as it is, that fits; of both, if neither helps alone. Returns the host's.
  std::optional<std::size_t> memory(const PlanKnobs& from, const Options& before) {
    const std::optional<std::size_t> own = least_device(from), host = least_host(from);
    if (own) add_memory(from, before, own, std::nullopt);
    if (host) add_memory(from, before, std::nullopt, host);
    if (own || host || !more_device()) return host;
    PlanKnobs knobs = from;
    knobs.memory.device = q_.askable.device;
    if (const auto of_host = least_host(knobs)) add_memory(from, before, q_.askable.device, of_host);
    return std::nullopt;
  }
  // Whether the device has more than the plan may have of it.
  bool more_device() const {
    return q_.there.device && q_.askable.device && *q_.askable.device > *q_.there.device && allowed("device_memory");
  }
  std::optional<std::size_t> least_device(const PlanKnobs& knobs) {
    if (!more_device()) return std::nullopt;
    MemoryCaps caps = knobs.memory;
    return least_between(*q_.there.device, *q_.askable.device, [&, fits = fitting(knobs)](std::size_t bytes) {
      caps.device = bytes;
      return fits(caps);
    });
  }
  // What the machine has, where that is enough; else what a machine is sold with. Of one rank.
  std::optional<std::size_t> least_host(const PlanKnobs& knobs) {
    const auto ranks = static_cast<std::size_t>(q_.host_ranks);
    const std::size_t there = q_.there.host.value_or(0);
    MemoryCaps caps = knobs.memory;
    const auto enough = [&, fits = fitting(knobs)](std::size_t bytes) {
      caps.host = bytes;
      return fits(caps);
    };
    if (!any_host() && q_.askable.host && *q_.askable.host > there && allowed("host_memory"))
      if (const auto least = least_between(there, *q_.askable.host, enough)) return least;
    if (!q_.buys_memory) return std::nullopt;
    const std::size_t* const first = std::upper_bound(std::begin(sold_memory), std::end(sold_memory), there * ranks);
    const std::size_t *bad = first, *good = std::end(sold_memory) - 1;
    if (first == std::end(sold_memory) || !enough(*good / ranks)) return std::nullopt;
    while (bad < good && in_time()) {
      const std::size_t* const middle = bad + (good - bad) / 2;
      if (enough(*middle / ranks))
        good = middle;
      else
        bad = middle + 1;
    }
    return *good / ranks;
  }
  // Whether the machine is one that is only planned for, so that it may have any host memory.
  bool any_host() const { return q_.askable.host == std::numeric_limits<std::size_t>::max(); }
  template <class Enough>
  std::optional<std::size_t> least_between(std::size_t bad, std::size_t good, const Enough& enough) {
    if (!enough(good)) return std::nullopt;
    while (good - bad > good / 500 && in_time()) {
      const std::size_t middle = bad + (good - bad) / 2;
      (enough(middle) ? good : bad) = middle;
    }
    return good;
  }
  void add_memory(const PlanKnobs& from, const Options& before, std::optional<std::size_t> device,
                  std::optional<std::size_t> host) {
    PlanKnobs knobs = from;
    Options options = before;
    std::string missing;
    if (device) {
      knobs.memory.device = at_most(rounded_up(*device), *q_.askable.device);
      options.emplace_back("device_memory", *knobs.memory.device == *q_.askable.device
                                                ? std::to_string(*q_.askable.device)
                                                : rounded_up(*device));
    }
    if (host) {
      const auto ranks = static_cast<std::size_t>(q_.host_ranks);
      const bool sold = std::binary_search(std::begin(sold_memory), std::end(sold_memory), *host * ranks);
      const std::string value = sold ? memory_text(*host * ranks) : rounded_up(*host * ranks);
      const std::size_t bytes = static_cast<std::size_t>(parse_bytes(value).value());
      knobs.memory.host = bytes / ranks;
      if (allowed("host_memory") && q_.askable.host && bytes / ranks <= *q_.askable.host)
        options.emplace_back("host_memory", value);
      else
        missing = fmt::format("{} of host memory, not {}", value, format_bytes(q_.there.host.value_or(0) * ranks));
    }
    if (missing.empty()) return add(std::move(options), knobs);
    changes_.push_back({{}, options.empty() ? missing : text_of(options) + " and " + missing, knobs});
  }
  static std::size_t at_most(const std::string& value, std::size_t most) {
    return std::min(static_cast<std::size_t>(parse_bytes(value).value()), most);
  }

  // Freezes the embedding and the fewest of the first layers that is enough, at most `most`. Returns how many.
  std::optional<std::int64_t> freeze(const PlanKnobs& from, const Options& before, std::int64_t most) {
    if (most < 0 || !allowed("freeze")) return std::nullopt;
    const auto with = [&](std::int64_t frozen) {
      PlanKnobs knobs = from;
      knobs.freeze = q_.freezable[static_cast<std::size_t>(frozen)];
      return knobs;
    };
    std::int64_t good = most, bad = -1;
    if (!fits(with(good))) return std::nullopt;
    while (good - bad > 1 && in_time()) {
      const std::int64_t middle = bad + (good - bad) / 2;
      (fits(with(middle)) ? good : bad) = middle;
    }
    Options options = before;
    options.emplace_back("freeze", *with(good).freeze);
    add(std::move(options), with(good));
    const std::int64_t layers = std::ssize(q_.freezable);
    changes_.back().text += fmt::format(" (trains {} of {} layers)", layers - good, layers);
    return good;
  }
  // A quarter of the layers is the least that is worth the name of training. -1: nothing may be frozen.
  std::int64_t most_frozen() const { return q_.freezable.empty() ? -1 : std::ssize(q_.freezable) * 3 / 4; }

  void smaller_model() {
    if (!q_.smaller_model || !in_time()) return;
    if (const auto smaller = q_.smaller_model([this] { return in_time(); })) {
      add({{"model", smaller->name}}, q_.asked);
      changes_.back().tokens_per_second = smaller->tokens_per_second;
    }
  }

  const PlanQuestion& q_;
  const CpuTimeLimit limit_;
  std::vector<PlanChange> changes_;
};

std::string message(const MemoryRefusal& refusal, const std::vector<PlanChange>& changes) {
  if (changes.empty()) return refusal.what();
  std::string text = fmt::format("{}; it would fit with {}", refusal.brief(), changes[0].text);
  if (changes.size() > 1)
    text += fmt::format(", or with {} above",
                        changes.size() == 2 ? "the other change named"
                                            : fmt::format("one of the {} other changes named", changes.size() - 1));
  return text;
}

}  // namespace

std::vector<PlanChange> find_changes(const PlanQuestion& question) { return Search(question).run(); }

PlanRefusal::PlanRefusal(const MemoryRefusal& refusal, std::vector<PlanChange> changes)
    : Error(message(refusal, changes)), changes_(std::move(changes)) {}

void refuse(const PlanQuestion& question, const MemoryRefusal& refusal) {
  std::string missing = refusal.short_of();
  if (missing.ends_with('\n')) missing.pop_back();
  log_info("does not fit:\n{}", missing);
  log_detail("memory that was planned:\n{}", refusal.plan().table());
  std::vector<PlanChange> changes = find_changes(question);
  std::string list;
  for (const PlanChange& change : changes) list += "\n  " + line_of(change);
  if (!changes.empty()) log_info("any one of these would make it fit:{}", list);
  throw PlanRefusal(refusal, std::move(changes));
}

void state_or_refuse(const PlanQuestion& question) {
  try {
    question.require_state();
  } catch (const MemoryRefusal& refusal) {
    refuse(question, refusal);
  }
}

TrainingPlan plan_or_refuse(const PlanQuestion& question) {
  try {
    return question.plan(question.asked);
  } catch (const MemoryRefusal& refusal) {
    refuse(question, refusal);
  }
}

}  // namespace so
