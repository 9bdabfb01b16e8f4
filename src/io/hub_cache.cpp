#include "io/hub_cache.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "io/tree_files.h"

namespace so {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t commit_digits = 40;

bool is_commit(std::string_view text) {
  return text.size() == commit_digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

// An owner's or a repository's name: letters, digits, '-', '_', '.', the first and the last of them neither '-' nor
// '.'.
bool is_plain_part(std::string_view part) {
  return !part.empty() && part.size() <= 96 && is_word(part.front()) && is_word(part.back()) &&
         std::all_of(part.begin(), part.end(), [](char c) { return is_word(c) || c == '-' || c == '.'; });
}

bool is_repository_id(std::string_view id) {
  const std::size_t slash = id.find('/');
  return slash != id.npos && is_plain_part(id.substr(0, slash)) && is_plain_part(id.substr(slash + 1)) &&
         id.find("--") == id.npos && id.find("..") == id.npos && !id.ends_with(".git");
}

// A relative path that stays below where it begins, without what git keeps out of names either.
bool is_inner_path(std::string_view path) {
  if (path.empty() || path.size() > 1024 || path.front() == '-' || path.find('\\') != path.npos) return false;
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t end = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, end - at);
    if (part.empty() || part == "." || part == "..") return false;
    at = end + 1;
  }
  return std::none_of(path.begin(), path.end(),
                      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

// Names in front of which nobody would look for an owner.
bool is_called_like_a_file(std::string_view name) {
  return is_data_name(name) || name.ends_with(".yaml") || name.ends_with(".yml");
}

// Where the revision of "REVISION/PATH" ends. Slashes belong to it in the two kinds of references that the hub itself
// makes, refs/pr/NUMBER and refs/convert/NAME.
std::size_t end_of_revision(std::string_view text) {
  std::size_t from = 0;
  for (const std::string_view special : {"refs/pr/", "refs/convert/"})
    if (text.starts_with(special)) from = special.size();
  return std::min(text.find('/', from), text.size());
}

std::string home_directory(const Environment& environment) {
  if (const char* home = environment("HOME"); home != nullptr && *home != '\0') return home;
  const passwd* user = ::getpwuid(::getuid());
  return user != nullptr && user->pw_dir != nullptr ? user->pw_dir : "/";
}

// With ~ at the beginning, $NAME and ${NAME} replaced, as Python's expanduser and expandvars do.
std::string expanded(std::string_view text, const Environment& environment) {
  std::string out;
  if (text == "~" || text.starts_with("~/")) {
    out = home_directory(environment);
    text.remove_prefix(1);
  }
  while (!text.empty()) {
    const bool braces = text.starts_with("${");
    const std::size_t begin = braces ? 2 : 1;
    std::size_t end = begin;
    while (text.front() == '$' && end < text.size() && is_word(text[end])) ++end;
    const char* value = nullptr;
    if (end > begin && (!braces || (end < text.size() && text[end] == '}')))
      value = environment(std::string(text.substr(begin, end - begin)).c_str());
    out += value != nullptr ? std::string_view(value) : text.substr(0, 1);
    text.remove_prefix(value != nullptr ? end + (braces ? 1 : 0) : 1);
  }
  return out;
}

// The reference's commit; none if there is no such reference.
std::optional<std::string> commit_of_reference(const fs::path& file) {
  constexpr std::uint64_t most_bytes = 100;
  if (!path_exists(file)) return std::nullopt;
  if (is_directory_path(file)) return std::nullopt;  // "refs/pr" of "refs/pr/1"
  std::string text = read_text_file(file, most_bytes);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.pop_back();
  if (!is_commit(text))
    fail("{}: \"{}\" is no commit, which has 40 hexadecimal digits; remove the file and download again",
         printable_path(file), printable(text));
  return text;
}

}  // namespace

std::optional<HubName> hub_name(std::string_view text, HubKind kind) {
  HubName name{.kind = kind};
  const std::size_t first = text.find('/');
  if (first == text.npos) return std::nullopt;
  const std::size_t end = std::min(text.find_first_of("/@", first + 1), text.size());
  const std::string_view id = text.substr(0, end);
  if (!is_repository_id(id) || is_called_like_a_file(id)) return std::nullopt;
  name.id = id;
  std::string_view rest = text.substr(end);
  if (rest.starts_with('@')) {
    rest.remove_prefix(1);
    const std::size_t length = kind == HubKind::model ? rest.size() : end_of_revision(rest);
    name.revision = rest.substr(0, length);
    if (!is_inner_path(name.revision) || name.revision.find("..") != std::string::npos) return std::nullopt;
    rest.remove_prefix(length);
  }
  if (rest.empty()) return name;
  rest.remove_prefix(1);
  while (rest.ends_with('/')) rest.remove_suffix(1);
  if (kind == HubKind::model || !is_inner_path(rest)) return std::nullopt;
  name.inside = rest;
  return name;
}

fs::path hub_cache(const Environment& environment) {
  const auto value = [&](const char* name) -> std::optional<std::string> {
    const char* text = environment(name);
    if (text == nullptr || *text == '\0') return std::nullopt;
    return expanded(text, environment);
  };
  fs::path cache;
  if (const auto named = value("HF_HUB_CACHE"))
    cache = *named;
  else if (const auto older = value("HUGGINGFACE_HUB_CACHE"))
    cache = *older;
  else if (const auto home = value("HF_HOME"))
    cache = fs::path(*home) / "hub";
  else if (const auto xdg = value("XDG_CACHE_HOME"))
    cache = fs::path(*xdg) / "huggingface" / "hub";
  else
    cache = fs::path(home_directory(environment)) / ".cache" / "huggingface" / "hub";
  std::error_code error;
  const fs::path absolute = fs::absolute(cache, error);
  if (error) fail_io("find the place of", cache, error.value());
  return absolute.lexically_normal();
}

bool hub_is_offline(const Environment& environment) {
  const char* given = environment("HF_HUB_OFFLINE");
  if (given == nullptr || *given == '\0') given = environment("TRANSFORMERS_OFFLINE");
  std::string text = given == nullptr ? "" : given;
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text == "1" || text == "ON" || text == "YES" || text == "TRUE";
}

fs::path hub_repository(const fs::path& cache, const HubName& name) {
  std::string folder = (name.kind == HubKind::model ? "models--" : "datasets--") + name.id;
  return cache / folder.replace(folder.find('/'), 1, "--");
}

std::optional<HubSnapshot> find_hub_snapshot(const fs::path& cache, const HubName& name) {
  HubSnapshot snapshot{.repository = hub_repository(cache, name)};
  if (is_commit(name.revision)) {
    snapshot.commit = name.revision;
  } else {
    const auto commit =
        commit_of_reference(snapshot.repository / "refs" / (name.revision.empty() ? "main" : name.revision));
    if (!commit) return std::nullopt;
    snapshot.commit = *commit;
  }
  snapshot.directory = snapshot.repository / "snapshots" / snapshot.commit;
  for (const fs::path& part : {snapshot.directory.parent_path(), snapshot.directory})
    if (is_link_path(part))
      fail(
          "{} is a link, and a cache of huggingface_hub has a directory there; name what it leads to, if that is meant",
          printable_path(part));
  if (!is_directory_path(snapshot.directory)) return std::nullopt;
  return snapshot;
}

std::string title_of_model(const std::string& directory) {
  fs::path path = fs::path(directory).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const fs::path repository = path.parent_path().parent_path();
  const std::string commit = path.filename().string();
  std::string folder = repository.filename().string();
  constexpr std::string_view prefix = "models--";
  if (!is_commit(commit) || path.parent_path().filename() != "snapshots" || !folder.starts_with(prefix))
    return directory;
  folder.erase(0, prefix.size());
  const std::size_t between = folder.find("--");
  if (between == std::string::npos) return directory;
  return folder.replace(between, 2, "/") + "@" + commit;
}

}  // namespace so
