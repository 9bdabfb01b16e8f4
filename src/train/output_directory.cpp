#include "train/output_directory.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "io/atomic_directory.h"
#include "train/run_length.h"

namespace so {
namespace {

namespace fs = std::filesystem;

// Files and directories in an output directory that are a run's.
bool of_a_run(const std::string& name) {
  return name == "metrics.jsonl" || name == "runs" || name == "config.json" || name == "checksums.json" || name.starts_with("checkpoint-") ||
         name.starts_with("model.safetensors") || (name.starts_with("model-") && name.ends_with(".safetensors"));
}

std::vector<fs::path> run_files(const fs::path& directory) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error))
    if (of_a_run(entry.path().filename().string())) found.push_back(entry.path());
  return found;
}

// An operating system's error is "not there" or the user's to solve, never an exception of the standard library.
fs::file_status status_of(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::status_known(status)) fail_io("look at", path, error.value());
  return status;
}

// Whether `path` is `directory` or below it once links are followed.
bool lies_in(const fs::path& path, const fs::path& directory) {
  std::error_code error;
  const fs::path inner = fs::canonical(path, error), outer = error ? fs::path() : fs::canonical(directory, error);
  if (error) return false;  // not there: whoever opens it says so
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

// Overwriting must not remove what the run is about to read.
void require_inputs_apart(const TrainOptions& options, const std::vector<fs::path>& doomed) {
  const std::pair<const char*, const std::string*> inputs[] = {
      {"--model", &options.model}, {"--data", &options.data}, {"--eval_data", &options.eval_data}};
  for (const auto& [name, input] : inputs)
    for (const fs::path& file : doomed)
      if (!input->empty() && lies_in(*input, file))
        fail("{} {} is part of the run that --overwrite_output_dir would remove ({}); choose another --output_dir",
             name, *input, file.string());
}

}  // namespace

OutputDirectory::OutputDirectory(const TrainOptions& options, const OptionOrigins&) : options_(options) {
  const fs::path directory = options.output_dir;
  const fs::file_status status = status_of(directory);
  if (fs::exists(status) && !fs::is_directory(status))
    fail("{} exists and is not a directory; choose another --output_dir", directory.string());
  std::error_code error;
  if (fs::equivalent(directory, options.model, error))
    fail("--output_dir is the model's own directory {}; choose another one", directory.string());
  if (options.resume.empty()) {
    const auto files = run_files(directory);
    if (!files.empty() && !options.overwrite_output_dir)
      fail(
          "{} already holds a run ({}); continue it with --resume, replace it with --overwrite_output_dir, or choose "
          "another --output_dir",
          directory.string(), files.front().filename().string());
    require_inputs_apart(options, files);
    return;
  }
  if (options.resume == "latest") {
    checkpoint_ = CheckpointDirectory(directory).latest();
    if (!checkpoint_) log_info("{} holds no checkpoint yet: starting from {}", directory.string(), options.model);
    return;
  }
  const fs::path given = options.resume;
  if (!fs::exists(status_of(given / trainer_state_file)))
    fail("{} is not a complete checkpoint: it has no {}", given.string(), trainer_state_file);
  checkpoint_ = Checkpoint{0, given};
}

void OutputDirectory::require_same_run(const TrainerState& state, std::uint64_t data_key) const {
  const std::string file = (checkpoint_->path / trainer_state_file).string();
  const TrainOptions same_length = with_recorded_length(options_, state.options);
  const auto differences = result_differences(train_option_table().view(same_length), state.options, file);
  if (!differences.empty()) {
    std::string all;
    for (const std::string& difference : differences) all += (all.empty() ? "" : "; ") + difference;
    fail("{} is of a run with other settings: {}; give the recorded values, or start a new run in another --output_dir",
         file, all);
  }
  if (state.data_key != data_key)
    fail("{} is of a run on other data: {} or the tokenizer has changed since; start a new run in another --output_dir",
         file, options_.data);
}

void OutputDirectory::prepare(std::uint64_t bytes) {
  const fs::path directory = options_.output_dir;
  require_writable(directory);
  require_free_space(directory, bytes);
  for (const char* stem : {"checkpoint-", "export"}) remove_stale_temporaries(directory, stem);
  remove_stale_siblings(directory / "metrics.jsonl");
  if (options_.overwrite_output_dir) {
    std::error_code error;
    for (const fs::path& file : run_files(directory)) {
      fs::remove_all(file, error);
      if (error) fail_io("remove", file, error.value());
    }
  } else if (!options_.resume.empty() && !checkpoint_) {
    // Killed before its first checkpoint: the metrics of the steps that are about to be run again would stand twice.
    std::error_code error;
    fs::remove(directory / "metrics.jsonl", error);
  }
}

}  // namespace so
