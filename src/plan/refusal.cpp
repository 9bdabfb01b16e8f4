#include "plan/refusal.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

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

std::string text_of(const Options& options) {
  std::string text;
  for (const auto& [name, value] : options) text += fmt::format("{}--{} {}", text.empty() ? "" : " ", name, value);
  return text;
}

class Search {
 public:
  explicit Search(const PlanQuestion& question) : q_(question), end_(thread_seconds() + question.seconds) {}

  std::vector<PlanChange> run() {
    const std::vector<Choice> choices = own_choices();
    for (const Choice& choice : choices) try_choice(choice);
    if (!numbers(q_.asked, {}))
      for (const Choice& choice : choices)
        if (choice.with_numbers && !helps_alone(choice)) numbers(choice.knobs, choice.options);
    if (!changes_.empty()) {
      memory(q_.asked, {});
      return std::move(changes_);
    }
    // Nothing helps by itself but more memory: all that needs no other data together, and numbers with that.
    Choice all{q_.asked, {}};
    for (const Choice& choice : choices) {
      choice.change(all.knobs);
      all.options.insert(all.options.end(), choice.options.begin(), choice.options.end());
    }
    if (choices.size() > 1) {
      if (fits(all.knobs)) {
        add(all.options);
        // Fewer of them, where they do.
        for (std::size_t left = 0; choices.size() > 2 && left < choices.size(); ++left) {
          Choice fewer{q_.asked, {}};
          for (std::size_t i = 0; i < choices.size(); ++i) {
            if (i == left) continue;
            choices[i].change(fewer.knobs);
            fewer.options.insert(fewer.options.end(), choices[i].options.begin(), choices[i].options.end());
          }
          if (fits(fewer.knobs)) add(fewer.options);
        }
      }
    }
    if (!choices.empty() && changes_.empty()) numbers(all.knobs, all.options);
    memory(q_.asked, {});
    return std::move(changes_);
  }

 private:
  struct Choice {
    PlanKnobs knobs;
    Options options;
    std::function<void(PlanKnobs&)> change;
    bool with_numbers = false;  // where neither helps alone, both may, and spare the choices that follow
  };

  // Counts this thread's own CPU time, so that the result does not depend on what else the machine does.
  static double thread_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }
  bool in_time() const { return thread_seconds() < end_; }
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
  void add(Options options) {
    std::string text = text_of(options);
    changes_.push_back({std::move(options), std::move(text)});
  }
  void try_choice(const Choice& choice) {
    if (fits(choice.knobs)) add(choice.options);
  }
  bool helps_alone(const Choice& choice) const {
    return std::any_of(changes_.begin(), changes_.end(),
                       [&](const PlanChange& change) { return change.options == choice.options; });
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
    if (allowed("optimizer_state_dtype") && q_.asked.optimizer_state_dtype == StatePrecision::fp32) {
      Options options{{"optimizer_state_dtype", "bf16"}};
      if (q_.rows->find("adam_beta2") && q_.asked.adam_beta2 > largest_beta2(StatePrecision::bf16))
        options.emplace_back("adam_beta2", "0.99");
      offer(std::move(options), [](PlanKnobs& knobs) { knobs.optimizer_state_dtype = StatePrecision::bf16; });
    }
    return choices;
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
    const auto add_with = [&](Options options) {
      options.insert(options.begin(), before.begin(), before.end());
      add(std::move(options));
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
                  {"gradient_accumulation_steps", std::to_string(knobs.gradient_accumulation_steps)}});
        break;
      }
    }
    if (allowed("batch_size")) {
      const auto with = [&](std::int64_t value) {
        PlanKnobs knobs = from;
        knobs.batch_size = value;
        return knobs;
      };
      if (const auto most = largest(1, 1, rows, with)) add_with({{"batch_size", std::to_string(*most)}});
    }
    if (allowed("max_length")) {
      const auto with = [&](std::int64_t value) {
        PlanKnobs knobs = from;
        knobs.max_length = value;
        return knobs;
      };
      const std::int64_t step = from.max_length > 256 ? 64 : 1;
      if (const auto most = largest(step == 1 ? 2 : step, step, from.max_length, with))
        add_with({{"max_length", std::to_string(*most)}});
    }
    return changes_.size() > known;
  }

  // The least of one memory, the other as it is, that fits; of both, if neither helps alone.
  void memory(const PlanKnobs& from, const Options& before) {
    const auto device = [](MemoryCaps& caps) -> std::optional<std::size_t>& { return caps.device; };
    const auto host = [](MemoryCaps& caps) -> std::optional<std::size_t>& { return caps.host; };
    const auto fits = fitting(from);
    const auto more_device = q_.there.device ? least_memory(fits, from.memory, device) : std::nullopt;
    const auto more_host = least_memory(fits, from.memory, host);
    if (more_device) add_memory(before, more_device, std::nullopt);
    if (more_host) add_memory(before, std::nullopt, more_host);
    if (more_device || more_host || !q_.there.device) return;
    MemoryCaps caps = from.memory;
    caps.host = most_memory;
    const auto own = least_memory(fits, caps, device);
    if (!own) return;
    caps = from.memory;
    caps.device = own;
    if (const auto of_host = least_memory(fits, caps, host)) add_memory(before, own, of_host);
  }
  template <class Fits, class Which>
  std::optional<std::size_t> least_memory(const Fits& fits, MemoryCaps caps, const Which& which) const {
    MemoryCaps there = q_.there;
    std::size_t bad = which(there).value_or(0), good = bad;
    const auto enough = [&](std::size_t bytes) {
      which(caps) = bytes;
      return fits(caps);
    };
    if (!enough(most_memory)) return std::nullopt;
    for (std::size_t more = std::max<std::size_t>(bad / 8, 1 << 20);; more *= 2) {
      good = std::min(most_memory, bad + more);
      if (good == most_memory || enough(good)) break;
      if (!in_time()) return std::nullopt;
      bad = good;
    }
    while (good - bad > good / 500 && in_time()) {
      const std::size_t middle = bad + (good - bad) / 2;
      (enough(middle) ? good : bad) = middle;
    }
    return good;
  }
  void add_memory(const Options& before, std::optional<std::size_t> device, std::optional<std::size_t> host) {
    Options options = before;
    std::string text;
    bool askable = true;
    const auto one = [&](const char* option, const char* what, std::optional<std::size_t> bytes,
                         std::optional<std::size_t> there, std::optional<std::size_t> most) {
      if (!bytes) return;
      const std::string value = rounded_up(*bytes);
      options.emplace_back(option, value);
      askable &= allowed(option) && most && static_cast<std::size_t>(parse_bytes(value).value()) <= *most;
      text += fmt::format("{}{} of {} memory, not {}", text.empty() ? "" : " and ", value, what,
                          format_bytes(there.value_or(0)));
    };
    one("device_memory", "device", device, q_.there.device, q_.askable.device);
    const auto of_host = [&](std::optional<std::size_t> bytes) -> std::optional<std::size_t> {
      constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
      const auto ranks = static_cast<std::size_t>(q_.host_ranks);
      if (bytes) return *bytes > most / ranks ? most : *bytes * ranks;
      return bytes;
    };
    one("host_memory", "host", of_host(host), of_host(q_.there.host), of_host(q_.askable.host));
    if (askable) return add(std::move(options));
    changes_.push_back({{}, before.empty() ? text : text_of(before) + " and " + text});
  }

  static constexpr std::size_t most_memory = std::size_t{1} << 45;  // more than any machine has
  const PlanQuestion& q_;
  const double end_;
  std::vector<PlanChange> changes_;
};

std::string message(const MemoryRefusal& refusal, const std::vector<PlanChange>& changes) {
  if (changes.empty()) return refusal.what();
  if (changes[0].options.empty()) return fmt::format("{}; it would fit with {}", refusal.what(), changes[0].text);
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
  for (const PlanChange& change : changes) list += fmt::format("\n  {}", change.text);
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
