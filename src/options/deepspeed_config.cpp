#include "options/deepspeed_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/file.h"
#include "options/deepspeed_json.h"

namespace so {
namespace {

using json = nlohmann::json;

constexpr std::int64_t max_batch = 1'000'000'000'000;
constexpr std::int64_t gradient_bytes = 4;  // an element of a bucket, counted in fp32

const DeepSpeedKey* find_key(std::string_view path) {
  const auto keys = deepspeed_keys();
  const auto it = std::lower_bound(keys.begin(), keys.end(), path,
                                   [](const DeepSpeedKey& k, std::string_view p) { return k.path < p; });
  return it != keys.end() && it->path == path ? &*it : nullptr;
}

class Reader {
 public:
  Reader(std::string_view name, int ranks, TrainOptions& options, OptionOrigins& origins)
      : name_(name), ranks_(ranks), options_(options), origins_(origins) {}

  void read(const json& config) {
    read_section(config, "");
    check_types_present(config);
    if (!file_values_.contains("mode"))
      set("mode", std::string("zerooffload"), "no zero_optimization.offload_optimizer.super_offload");
    resolve_batch();
    check_total_steps();
  }

 private:
  std::string at(std::string_view path) const { return fmt::format("{}: {}", name_, path); }

  void read_section(const json& object, const std::string& prefix) {
    for (const auto& [key, value] : object.items()) {
      const std::string path = prefix.empty() ? key : prefix + "." + key;
      const DeepSpeedKey* known = key.find_first_of(".[") == std::string::npos ? find_key(path) : nullptr;
      if (known == nullptr) refuse_unknown(prefix, key);
      if (known->kind == JsonKind::object ? value.is_null() : is_unset(value)) continue;
      if (!is_kind(value, known->kind)) fail("{} must be {}, is {}", at(path), kind_text(known->kind), shown(value));
      read_key(*known, value);
    }
  }

  void read_key(const DeepSpeedKey& key, const json& value) {
    switch (key.use) {
      case KeyUse::section:
        read_section(value, key.path);
        return;
      case KeyUse::unused:
        return;
      case KeyUse::option:
        read_option(key, value);
        return;
      case KeyUse::special:
        read_special(key, value);
        return;
      case KeyUse::limited:
        for (const std::string& accepted : key.accepted)
          if (json::parse(accepted) == value) return;
        fail("{} is {}: {}", at(key.path), shown(value), key.why);
      case KeyUse::feature: {
        const auto enabled = value.find("enabled");
        if (enabled == value.end() || is_unset(*enabled) || *enabled == false) return;
        fail("{}.enabled is {}: {}", at(key.path), shown(*enabled), key.why);
      }
    }
  }

  void read_option(const DeepSpeedKey& key, const json& value) {
    const OptionSpec& spec = train_option_table().at(key.option);
    const OptionValue translated = check_value(spec, translate(key, spec, value), at(key.path));
    if (key.option == "bucket_size") {
      // DeepSpeed's size is an upper limit on what is in flight; smaller buckets keep it, with more overlap.
      if (std::get<std::int64_t>(translated) < options_.bucket_size || origins_.given("bucket_size"))
        set(key.option, translated, key.path);
      return;
    }
    set(key.option, translated, key.path);
  }

  // Translates a key's value into a value of its option.
  OptionValue translate(const DeepSpeedKey& key, const OptionSpec& spec, const json& value) const {
    if (key.option == "dtype") return std::string(value.get<bool>() ? "bf16" : "fp32");
    if (key.option == "mode") return std::string(value.get<bool>() ? "superoffload" : "zerooffload");
    if (key.path == "zero_optimization.cpu_offload") return std::string(value.get<bool>() ? "cpu" : "none");
    if (key.option == "offload_optimizer" && value == "nvme")
      fail("{} is \"nvme\": offload to NVMe is not implemented; set it to \"cpu\"", at(key.path));
    if (key.option == "lr_scheduler") return scheduler_of(key, value);
    if (key.option == "bucket_size") return bounded_integer(key, value, max_batch) * gradient_bytes;
    if (key.option == "warmup_num_steps")  // DeepSpeed warms up over at least two
      return std::max<std::int64_t>(2, bounded_integer(key, value, max_batch));
    if (value.is_boolean()) return value.get<bool>();
    if (value.is_string()) return value.get<std::string>();
    if (spec.kind == OptionKind::integer) return bounded_integer(key, value, std::numeric_limits<std::int64_t>::max());
    return value.get<double>();
  }

  std::int64_t bounded_integer(const DeepSpeedKey& key, const json& value, std::int64_t limit) const {
    const auto number = value.get<double>();
    if (!(number >= 1 && number <= static_cast<double>(limit)) || number >= 9223372036854775808.0)
      fail("{} is {}; it must be a whole number from 1 to {}", at(key.path), shown(value), limit);
    return value.is_number_float() ? static_cast<std::int64_t>(number) : value.get<std::int64_t>();
  }

  OptionValue scheduler_of(const DeepSpeedKey& key, const json& value) const {
    if (value == "WarmupLR") return std::string("constant");
    if (value == "WarmupDecayLR") return std::string("linear");
    if (value == "WarmupCosineLR") return std::string("cosine");
    fail("{} is {}: it is not implemented; use WarmupLR (constant), WarmupDecayLR (linear) or WarmupCosineLR (cosine)",
         at(key.path), shown(value));
  }

  void read_special(const DeepSpeedKey& key, const json& value) {
    if (key.path == "train_batch_size") {
      train_batch_size_ = bounded_integer(key, value, max_batch);
    } else if (key.path == "scheduler.params.total_num_steps") {
      total_num_steps_ = bounded_integer(key, value, max_batch);
    } else if (key.path == "zero_optimization.stage") {
      const auto stage = value.get<double>();
      if (stage != 0 && stage != 1 && stage != 2 && stage != 3)
        fail("{} is {}: stages are 0 to 3", at(key.path), shown(value));
      if (stage < 3) set("gathered_layers", std::int64_t{0}, key.path);
    } else if (key.path == "optimizer.type") {
      std::string type = value.get<std::string>();  // DeepSpeed does not mind the case either
      std::transform(type.begin(), type.end(), type.begin(),
                     [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
      if (type != "adamw" && type != "adam")
        fail("{} is {}: only AdamW is implemented; set it to \"AdamW\"", at(key.path), shown(value));
    } else if (key.path == "optimizer.params.betas") {
      if (value.size() != 2) fail("{} has {} elements; it must have two", at(key.path), value.size());
      for (int i = 0; i < 2; ++i) {
        const std::string path = fmt::format("{}[{}]", key.path, i);
        if (is_unset(value[i])) continue;
        if (!value[i].is_number()) fail("{} must be a number, is {}", at(path), shown(value[i]));
        read_key(*find_key(path), value[i]);
      }
    } else {
      SO_BUG("no code for DeepSpeed key {}", key.path);
    }
  }

  // One value from the file, by way of `path`, for an option. Two keys of one option must agree.
  void set(const std::string& option, const OptionValue& value, const std::string& path) {
    const auto [it, first] = file_values_.try_emplace(option, value, path);
    if (!first && it->second.first != value)
      fail("{} and {} both set {}, to {} and {}; make them equal or remove one", at(it->second.second), path, option,
           to_string(it->second.first), to_string(value));
    assign(train_option_table().ref(options_), origins_, train_option_table().at(option), value, Origin::file,
           at(path));
  }

  // DeepSpeed ignores a section's params when its type is missing; nobody means that.
  void check_types_present(const json& config) {
    for (const char* name : {"optimizer", "scheduler"}) {
      const auto section = config.find(name);
      if (section == config.end() || !section->is_object()) continue;
      json params = section->value("params", json::object());
      if (params.is_null()) params = json::object();
      if (params.empty() && !section->contains("type")) continue;
      if (!section->contains("type")) fail("{}.params has no effect without {}.type; add the type", at(name), name);
      if (std::string_view(name) == "scheduler" && origins_.of("lr_scheduler").origin == Origin::file)
        note_schedule(params);
    }
  }

  // Where DeepSpeed's schedule, left to its own defaults, is not quite ours.
  void note_schedule(const json& params) {
    const auto absent = [&](const char* key) { return !params.contains(key) || is_unset(params[key]); };
    if (absent("warmup_type"))
      origins_.notes.push_back(
          at("scheduler.params.warmup_type is absent: warm-up is linear here, logarithmic in DeepSpeed"));
    if (options_.lr_scheduler != LrScheduler::cosine) return;
    if (absent("cos_min_ratio"))
      origins_.notes.push_back(
          at("scheduler.params.cos_min_ratio is absent: the cosine ends at 0 here, at 0.0001 of lr in DeepSpeed"));
    origins_.notes.push_back(
        at("scheduler.type WarmupCosineLR: the cosine is Hugging Face's; DeepSpeed's runs one step ahead of it"));
  }

  void refuse_unknown(const std::string& prefix, const std::string& key) const {
    std::vector<std::string> siblings, elsewhere;
    for (const DeepSpeedKey& k : deepspeed_keys()) {
      const std::size_t dot = k.path.rfind('.');
      const std::string parent = dot == std::string::npos ? "" : k.path.substr(0, dot);
      const std::string leaf = dot == std::string::npos ? k.path : k.path.substr(dot + 1);
      if (leaf.find('[') != std::string::npos) continue;
      if (parent == prefix)
        siblings.push_back(leaf);
      else if (leaf == key)
        elsewhere.push_back(k.path);
    }
    const std::string shown_key = prefix.empty() ? in_quotes(key) : fmt::format("{} in {}", in_quotes(key), prefix);
    std::string hint = elsewhere.empty() ? std::string() : elsewhere.front();
    if (const std::string near = nearest_name(key, siblings); !near.empty())
      hint = prefix.empty() ? near : prefix + "." + near;
    fail("{}: unknown key {}; {}", name_, shown_key,
         hint.empty() ? "remove it (docs/deepspeed-config.md lists the known keys)"
                      : fmt::format("did you mean {}?", hint));
  }

  std::string batch_term(const char* option) const {
    const OptionOrigin& origin = origins_.of(option);
    const std::string value = to_string(train_option_table().view(options_).get(option));
    return fmt::format("{} {} ({})", option, value,
                       origin.origin == Origin::file ? name_ : std::string(name_of(origin.origin)));
  }

  // As DeepSpeed does it: of train_batch_size = batch_size x gradient_accumulation_steps x ranks, what is missing
  // follows from the rest, and accumulation is 1 if it is missing together with batch_size. A group of ranks that
  // splits its sequences counts as one.
  void resolve_batch() {
    if (!train_batch_size_) return;
    RankOptions all = options_;
    all.gpus = static_cast<int>(ranks_);
    check_ranks(all);
    const std::int64_t total = *train_batch_size_, size = options_.sequence_parallel_size, ranks = ranks_ / size;
    const bool has_batch = origins_.given("batch_size");
    const bool has_accumulation = origins_.given("gradient_accumulation_steps");
    const auto divide = [&](std::int64_t divisor, const std::string& by) {
      if (total % divisor != 0)
        fail("{} {} is not a multiple of {}; make it one, or \"auto\"", at("train_batch_size"), total, by);
      return total / divisor;
    };
    const auto derive = [&](const char* option, std::int64_t value, const std::string& how) {
      const OptionSpec& spec = train_option_table().at(option);
      set(option, check_value(spec, value, at(how)), how);
    };
    const std::string rank_text =
        fmt::format("{} {}{}", ranks, size == 1 ? "rank" : "sequence group", ranks == 1 ? "" : "s");
    if (!has_accumulation && !has_batch) derive("gradient_accumulation_steps", 1, "train_batch_size without it");
    if (!has_batch) {
      const std::string by = fmt::format("{} x {}", batch_term("gradient_accumulation_steps"), rank_text);
      derive("batch_size", divide(options_.gradient_accumulation_steps * ranks, by),
             fmt::format("train_batch_size {} / ({} x {})", total, options_.gradient_accumulation_steps, rank_text));
    } else if (!has_accumulation) {
      const std::string by = fmt::format("{} x {}", batch_term("batch_size"), rank_text);
      derive("gradient_accumulation_steps", divide(options_.batch_size * ranks, by),
             fmt::format("train_batch_size {} / ({} x {})", total, options_.batch_size, rank_text));
    }
    const std::int64_t product = options_.batch_size * options_.gradient_accumulation_steps * ranks;
    if (product != total)
      fail("{} {} is not {} x {} x {} = {}; make it {}, or \"auto\"", at("train_batch_size"), total,
           batch_term("batch_size"), batch_term("gradient_accumulation_steps"), rank_text, product, product);
  }

  void check_total_steps() const {
    if (!total_num_steps_ || *total_num_steps_ == options_.max_steps) return;
    fail("{} is {}, but the schedule ends with the run{}; set it to \"auto\" or give --max_steps {}",
         at("scheduler.params.total_num_steps"), *total_num_steps_,
         options_.max_steps ? fmt::format(" at step {}", *options_.max_steps) : "", *total_num_steps_);
  }

  std::string name_;
  std::int64_t ranks_;
  TrainOptions& options_;
  OptionOrigins& origins_;
  std::optional<std::int64_t> train_batch_size_, total_num_steps_;
  std::map<std::string, std::pair<OptionValue, std::string>> file_values_;  // option to value and key
};

}  // namespace

void apply_deepspeed_text(std::string_view text, std::string_view name, int ranks, TrainOptions& options,
                          OptionOrigins& origins) {
  SO_CHECK(ranks >= 1 && ranks <= 1'000'000, "{} ranks", ranks);
  Reader(name, ranks, options, origins).read(parse_deepspeed(text, name));
}

void apply_deepspeed_config(const std::string& file, int ranks, TrainOptions& options, OptionOrigins& origins) {
  std::string text;
  try {
    text = read_text_file(file, max_deepspeed_bytes);
  } catch (const Error& error) {
    fail("{}; check --deepspeed_config", error.what());
  }
  apply_deepspeed_text(text, file, ranks, options, origins);
}

}  // namespace so
