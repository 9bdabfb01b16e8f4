#include "checkpoint/output_space.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <numeric>
#include <set>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/quantities.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/export.h"
#include "io/hf_directory.h"

namespace so {
namespace {

namespace fs = std::filesystem;

// Saturates: a million checkpoints of a large model exceed 64 bits.
std::uint64_t times(std::int64_t count, std::uint64_t bytes) {
  if (count <= 0) return 0;
  std::uint64_t product = 0;
  return __builtin_mul_overflow(static_cast<std::uint64_t>(count), bytes, &product)
             ? std::numeric_limits<std::uint64_t>::max() / 2
             : std::min(product, std::numeric_limits<std::uint64_t>::max() / 2);
}

std::uint64_t bytes_below(const fs::path& directory) {
  std::uint64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code vanished;
    if (!entry->is_regular_file(vanished)) continue;
    const std::uintmax_t size = entry->file_size(vanished);
    if (!vanished) bytes += size;
  }
  return bytes;
}

// Whether two paths lie, or will lie, on one file system.
bool on_one_file_system(const fs::path& a, const fs::path& b) {
  const auto device_of = [](fs::path path) {
    struct stat status {};
    std::error_code ignored;
    path = fs::absolute(path, ignored);
    while (::stat(path.c_str(), &status) != 0) {
      if ((errno != ENOENT && errno != ENOTDIR) || path == path.parent_path())
        fail_io("find the file system of", path, errno);
      path = path.parent_path();
    }
    return status.st_dev;
  };
  return device_of(a) == device_of(b);
}

}  // namespace

SavedBytes saved_bytes(std::uint64_t weights, std::int64_t parameters, const NumberFormats& formats,
                       const fs::path& directory, bool only_model) {
  std::uint64_t small = 0;
  if (!directory.empty()) {
    for (const std::string& name : auxiliary_files(directory)) {
      std::error_code error;
      const std::uintmax_t size = fs::file_size(directory / name, error);
      if (!error) small += size;
    }
  }
  SavedBytes saved;
  saved.model = weights + small;
  saved.checkpoint = only_model ? saved.model : saved.model + state_file_bytes(parameters, formats);
  return saved;
}

std::uint64_t OutputSpace::peak() const {
  // Before the last save the earlier ones have been rotated.
  const std::int64_t before_last = existing + std::max<std::int64_t>(saves - 1, 0);
  const std::int64_t held = keep > 0 && saves > 1 ? std::min(before_last, keep) : before_last;
  const std::int64_t at_once = saves == 0 ? 0 : std::max<std::int64_t>(1, held + 1 - existing);
  const std::uint64_t all = times(at_once, saved.checkpoint) + saved.model;
  return all > replaced ? all - replaced : 0;
}

std::string OutputSpace::line(std::uint64_t free) const {
  std::string text = fmt::format("disk: final model {}", format_bytes(saved.model));
  const std::int64_t newest = keeps_best ? keep - 1 : keep;
  if (saves > 0)
    text += fmt::format(", {}{} checkpoint{} of {}{}", keeps_best && saves > 1 ? "at most " : "", saves,
                        saves == 1 ? "" : "s", format_bytes(saved.checkpoint),
                        keep > 0 && keep < saves
                            ? fmt::format(" (newest {}{} kept)", newest, keeps_best ? " and the best" : "")
                            : std::string());
  return text + fmt::format(", {} at once; {} free", format_bytes(peak()), format_bytes(free));
}

void OutputSpace::require(const fs::path& directory) const {
  const std::uint64_t free = free_space(directory), needed = peak();
  if (free >= needed) return;
  const bool fewer = saves > 1 && (keep == 0 || keep > 1);
  fail("no space left on {}: {}, {} missing; free some space{} or choose another --output_dir",
       printable_path(directory), line(free), format_bytes(needed - free),
       fewer ? ", keep fewer checkpoints (--save_total_limit)" : "");
}

namespace {

// How often something comes at a cadence after `first` and before `last`.
struct Recurrence {
  std::int64_t of(Cadence cadence, const std::optional<std::int64_t>& every) const {
    if (cadence == Cadence::epoch) return epochs_in(last - 1) - epochs_in(first);
    return cadence == Cadence::steps && every ? (last - 1) / *every - first / *every : 0;
  }
  std::int64_t first, last;
  const std::function<std::int64_t(std::int64_t)>& epochs_in;
};

// Checkpoints before the end: those that save_steps asks for, and one for each evaluation that may be the best.
std::int64_t saves_before_end(const LoopOptions& options, const Recurrence& times) {
  const std::int64_t asked = times.of(options.save_strategy, options.save_steps);
  if (!options.load_best_model_at_end) return asked;
  const std::int64_t evaluations = times.of(options.eval_strategy, options.eval_steps);
  if (options.save_strategy != options.eval_strategy) return asked + evaluations;  // at most
  if (options.save_strategy == Cadence::epoch) return asked;
  if (!options.save_steps || !options.eval_steps) return asked + evaluations;
  std::int64_t both = 0;
  const std::int64_t a = *options.save_steps, b = *options.eval_steps;
  const bool never = __builtin_mul_overflow(a / std::gcd(a, b), b, &both);
  return asked + evaluations - (never ? 0 : times.of(Cadence::steps, both));
}

}  // namespace

OutputSpace output_space(const LoopOptions& options, const SavedBytes& saved, std::int64_t first_step,
                         std::int64_t last_step, const std::function<std::int64_t(std::int64_t)>& epochs_in) {
  OutputSpace plan;
  plan.saved = saved;
  plan.keep = options.save_total_limit.value_or(0);
  plan.keeps_best = options.load_best_model_at_end;
  if (plan.keep == 1 && plan.keeps_best) plan.keep = 2;
  if (last_step > first_step) plan.saves = 1 + saves_before_end(options, {first_step, last_step, epochs_in});
  for (const Checkpoint& checkpoint : CheckpointDirectory(options.output_dir).list()) {
    if (options.resume)
      plan.existing += checkpoint.step <= first_step ? 1 : 0;  // those beyond are set aside
    else if (options.overwrite_output_dir)
      plan.replaced += bytes_below(checkpoint.path);
  }
  return plan;
}

std::vector<CacheNeed> cache_needs(std::span<DatasetSource> sources) {
  std::vector<CacheNeed> needs;
  std::set<fs::path> caches;  // one file may be data and evaluation data
  for (DatasetSource& source : sources)
    if (source.makes_cache() && caches.insert(source.cache()).second)
      needs.push_back({source.name(), source.cache().parent_path(), source.most_cache_bytes(),
                       [&source] { return source.count_cache_bytes(); }});
  return needs;
}

std::string cache_line(std::span<const CacheNeed> needs) {
  if (needs.empty()) return {};
  std::uint64_t most = 0;
  for (const CacheNeed& need : needs) most += need.most;
  const std::filesystem::path& directory =
      needs.front().directory;  // all go to one, unless one of them may not be used
  return fmt::format("token cache{}: at most {} by an estimate, in {}; {} free", needs.size() == 1 ? "" : "s",
                     format_bytes(most), printable_path(directory), format_bytes(free_space(directory)));
}

void require_cache_space(std::span<const CacheNeed> needs, const std::filesystem::path& output,
                         std::uint64_t output_bytes) {
  for (const CacheNeed& first : needs) {
    const auto is_earlier = [&](const CacheNeed& need) {
      return &need < &first && on_one_file_system(need.directory, first.directory);
    };
    if (std::any_of(needs.begin(), needs.end(), is_earlier)) continue;
    const bool with_output = output_bytes > 0 && on_one_file_system(first.directory, output);
    const std::uint64_t free = free_space(first.directory);
    std::uint64_t most = with_output ? output_bytes : 0;
    for (const CacheNeed& need : needs)
      if (on_one_file_system(need.directory, first.directory)) most += need.most;
    if (most <= free) continue;
    std::uint64_t needed = with_output ? output_bytes : 0;
    std::string parts;
    for (const CacheNeed& need : needs) {
      if (!on_one_file_system(need.directory, first.directory)) continue;
      log_info("counting the tokens of {}: its cache may take {}, and {} are free", printable(need.data),
               format_bytes(need.most), format_bytes(free));
      const std::uint64_t bytes = need.count();
      parts += fmt::format("{}the token cache of {} takes {}", parts.empty() ? "" : ", ", printable(need.data),
                           format_bytes(bytes));
      needed += bytes;
    }
    if (needed <= free) continue;
    if (with_output) parts += fmt::format(", the run's model and first checkpoint {}", format_bytes(output_bytes));
    fail("no space left on {}: {}; {} free, {} missing; free some space or choose another --cache_dir{}",
         printable_path(first.directory), parts, format_bytes(free), format_bytes(needed - free),
         with_output ? " or --output_dir" : "");
  }
}

}  // namespace so
