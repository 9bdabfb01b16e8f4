#include "commands/program/hub_download.h"

#include <system_error>
#include <vector>

#include "base/child_process.h"
#include "base/error.h"
#include "base/log.h"
#include "base/program_path.h"

namespace so {
namespace {

// The names of the files that are fetched, as a pattern; empty: all.
std::string wanted_files(const HubDownload& download) {
  if (download.use == HubUse::config) return "config.json";
  if (download.use == HubUse::small_files) return "*.j*";  // .json and .jinja
  const std::string& inside = download.name.inside;
  if (inside.empty() || inside.find_first_of("*?[") != inside.npos) return inside;
  return std::filesystem::path(inside).has_extension() ? inside : inside + "/*";
}

std::vector<std::string> download_words(const HubDownload& download) {
  std::vector<std::string> words{"hf", "download", download.name.id};
  if (download.name.kind == HubKind::dataset) words.insert(words.end(), {"--repo-type", "dataset"});
  if (!download.name.revision.empty()) words.insert(words.end(), {"--revision", download.name.revision});
  if (const std::string files = wanted_files(download); !files.empty()) words.insert(words.end(), {"--include", files});
  return words;
}

// The same through the module, where there is no hf: isolated (-I), so that modules come from that Python's own
// directories alone.
std::vector<std::string> python_words(const std::string& python, const HubDownload& download) {
  constexpr const char* script = R"(import sys
try:
    from huggingface_hub import snapshot_download
except ImportError:
    sys.exit(113)
kind, name, revision, files = sys.argv[1:]
snapshot_download(name, repo_type=kind, revision=revision or None, allow_patterns=files or None)
)";
  return {python,
          "-I",
          "-c",
          script,
          download.name.kind == HubKind::model ? "model" : "dataset",
          download.name.id,
          download.name.revision,
          wanted_files(download)};
}
constexpr int has_no_module = 113;

// It runs in the root directory, so what is relative here is made absolute. Modules of Python come from its own
// directories.
std::vector<std::string> variables_for(const HubDownload& download, bool talks) {
  std::vector<std::string> variables;
  for (std::string& variable : environment_of_programs()) {
    const std::string name = variable.substr(0, variable.find('='));
    if (name == "PYTHONPATH" || name == "PYTHONHOME" || name == "HF_HUB_CACHE") continue;
    if (name == "HF_HOME") {
      const std::string home = variable.substr(name.size() + 1);
      if (!home.empty() && std::string("/~$").find(home.front()) == std::string::npos)
        variable = "HF_HOME=" + std::filesystem::absolute(home).string();
    }
    variables.push_back(std::move(variable));
  }
  variables.push_back("HF_HUB_CACHE=" + download.cache.string());
  if (!talks) variables.emplace_back("HF_HUB_DISABLE_PROGRESS_BARS=1");
  return variables;
}

}  // namespace

std::string hub_download_line(const HubDownload& download) {
  std::string line;
  for (const std::string& word : download_words(download)) line += (line.empty() ? "" : " ") + shell_word(word);
  return line;
}

void run_hub_download(const HubDownload& download, const std::string& where, bool talks) {
  const std::string line = hub_download_line(download);
  if (talks) log_info("{}: {}", where, line);
  for (const std::vector<std::string>& words :
       {download_words(download), python_words("python3", download), python_words("/usr/bin/python3", download)}) {
    if (!find_program(words.front())) continue;
    const int code = run_to_its_end(words, variables_for(download, talks));
    if (code == 0) return;
    if (code == has_no_module && words.front() != "hf") continue;
    fail("{}: {} ended with exit code {}; what it said stands above", where, line, code);
  }
  fail("{}: --download needs huggingface_hub, which no python3 here has: pip install huggingface_hub", where);
}

}  // namespace so
