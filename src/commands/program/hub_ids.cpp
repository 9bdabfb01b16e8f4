#include "commands/program/hub_ids.h"

#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/comma_list.h"
#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "base/log.h"
#include "commands/program/hub_download.h"
#include "io/hub_cache.h"
#include "io/hub_snapshot.h"

namespace so {
namespace {

namespace fs = std::filesystem;

const char* hub_environment(const char* name) { return std::getenv(name); }

bool is_set(OptionsView options, std::string_view name) {
  const OptionSpec* spec = options.rows().find(name);
  return spec != nullptr && std::get<bool>(options.get(*spec));
}

// A text that names one repository, and what is asked of it.
class NamedRepository {
 public:
  NamedRepository(OptionsView options, const OptionSpec& spec, HubName name, std::string text)
      : options_(options),
        spec_(spec),
        name_(std::move(name)),
        text_(std::move(text)),
        cache_(hub_cache(hub_environment)) {
    use_ = spec.hub_use;
    if (use_ == HubUse::weights && is_set(options, "dry_run")) use_ = HubUse::small_files;
    find();
  }

  bool is_here() const { return path_exists(hub_repository(cache_, name_)); }
  bool is_whole() const { return snapshot_ && missing_.empty(); }
  std::string path() const {
    return (name_.inside.empty() ? snapshot_->directory : snapshot_->directory / name_.inside).string();
  }

  void download() {
    run_hub_download({name_, use_, cache_}, fmt::format("--{} {}", spec_.name, text_), !is_set(options_, "quiet"));
    find();
  }

  [[noreturn]] void refuse(std::string_view advice) const {
    std::string why;
    const std::string kind = name_.kind == HubKind::model ? "model" : "data set";
    if (snapshot_)
      why = fmt::format("of its snapshot in the Hugging Face cache, {}, {} is missing{}",
                        printable_path(snapshot_->directory), printable(missing_),
                        has_unfinished_files(*snapshot_) ? " (a download was interrupted, or goes on)" : "");
    else if (is_here())
      why = fmt::format("the Hugging Face cache, {}, has this {}, but not its revision {}", printable_path(cache_),
                        kind, name_.revision.empty() ? "main" : name_.revision);
    else
      why = fmt::format("there is no such {} here, and no such {} in the Hugging Face cache, {}",
                        name_.kind == HubKind::model ? "directory" : "file or directory", kind, printable_path(cache_));
    fail("--{} {}: {}; {}", spec_.name, printable(text_), why, advice);
  }

  std::string download_line() const { return hub_download_line({name_, use_, cache_}); }

 private:
  void find() {
    snapshot_ = find_hub_snapshot(cache_, name_);
    missing_ = snapshot_ ? missing_of(*snapshot_, use_, name_.inside) : "";
  }

  const OptionsView options_;
  const OptionSpec& spec_;
  const HubName name_;
  const std::string text_;
  const fs::path cache_;
  HubUse use_;
  std::optional<HubSnapshot> snapshot_;
  std::string missing_;
};

// Whether the text is a path rather than a name: it exists, or the beginning of a longer one does.
bool is_path(const std::string& text, const HubName& name) {
  if (path_exists(text)) return true;
  return !name.inside.empty() && is_directory_path(name.id.substr(0, name.id.find('/')));
}

std::string path_of(OptionsView options, const OptionSpec& spec, const std::string& text, int rank, int ranks) {
  const auto name = hub_name(text, spec.hub_use == HubUse::data ? HubKind::dataset : HubKind::model);
  if (!name) return text;
  if (is_path(text, *name)) {
    if (rank == 0 && path_exists(hub_repository(hub_cache(hub_environment), *name)))
      log_warning("--{} {}: taken for what is called so here; the Hugging Face cache has it too", spec.name,
                  printable(text));
    return text;
  }
  NamedRepository repository(options, spec, *name, text);
  const bool may_download = is_set(options, "download");
  if (repository.is_whole()) return repository.path();
  const std::string line = repository.download_line();
  const bool offline = hub_is_offline(hub_environment);
  if (may_download && !offline && ranks == 1) {
    repository.download();
    if (repository.is_whole()) return repository.path();
    repository.refuse(line + " ended well, and left it so");
  }
  std::string advice = "fetch it: " + line;
  if (offline)
    advice += " (HF_HUB_OFFLINE is set; unset it before)";
  else if (may_download)
    advice += fmt::format(" (--download does so before ranks start, and {} are running)", ranks);
  else if (options.rows().find("download") != nullptr)
    advice += ", or give --download";
  repository.refuse(advice);
}

// The parts of a list that are data, or the one path.
std::string paths_of(OptionsView options, const OptionSpec& spec, const std::string& text, int rank, int ranks) {
  if (spec.hub_use != HubUse::data || text.find(',') == text.npos || path_exists(text))
    return path_of(options, spec, text, rank, ranks);
  std::string paths;
  for (const std::string_view part : between_commas(text)) {
    const std::string path = path_of(options, spec, std::string(part), rank, ranks);
    if (path != part && path.find(',') != path.npos)
      fail("--{} {}: the path {} has a comma, which separates the parts of a list; set HF_HOME to another", spec.name,
           printable(text), printable(path));
    paths += (paths.empty() ? "" : ",") + path;
  }
  return paths;
}

}  // namespace

void use_hub_snapshots(OptionsRef options, int rank, int ranks) {
  for (const OptionSpec& spec : options.rows().specs()) {
    if (spec.hub_use == HubUse::none) continue;
    const std::string text = to_string(options.get(spec));
    if (text.empty()) continue;
    if (const std::string path = paths_of(options, spec, text, rank, ranks); path != text) options.set(spec, path);
  }
}

}  // namespace so
