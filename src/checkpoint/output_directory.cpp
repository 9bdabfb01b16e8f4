#include "checkpoint/output_directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "base/log.h"
#include "checkpoint/run_length.h"
#include "data/data_files.h"
#include "io/atomic_directory.h"
#include "io/metrics_reader.h"
#include "io/samples.h"

namespace so {
namespace {

namespace fs = std::filesystem;

// Overwriting must not remove what the run is about to read, by whatever name it reads it.
void require_inputs_apart(const InputOptions& read_files, const fs::path& directory, const FileNames& doomed) {
  const auto real = [](const fs::path& path) {
    std::error_code error;
    fs::path canonical = fs::canonical(path, error);
    return error ? fs::path() : canonical;  // not there: whoever opens it says so
  };
  std::set<fs::path> gone;
  for (const std::string& name : doomed) gone.insert(real(directory / name));
  gone.erase(fs::path());
  const std::string evaluation = read_files.eval_data.value_or("");
  const std::string prompts = read_files.sample_prompts.value_or("");
  const std::pair<const char*, const std::string*> inputs[] = {{"--model", &read_files.model},
                                                               {"--data", &read_files.data},
                                                               {"--eval_data", &evaluation},
                                                               {"--sample_prompts", &prompts}};
  for (const auto& [option, input] : inputs) {
    std::vector<fs::path> read{*input};
    if (!input->empty() && input != &read_files.model && input != &prompts)
      read = all_files(data_files(*input, option, input == &evaluation ? DataUse::evaluation : DataUse::training));
    if (input == &read_files.model && is_directory_path(*input))
      for (const fs::path& entry : entries_of(*input)) read.push_back(entry);
    for (const fs::path& path : read)
      if (const fs::path file = real(path); gone.contains(file))
        fail("{} {} is part of the run that --overwrite_output_dir would remove ({}); choose another --output_dir",
             option, *input, printable_path(file));
  }
}

// A damaged one is not passed over: whoever reads it says so.
std::optional<Checkpoint> latest_in(const fs::path& directory) {
  std::vector<Checkpoint> all = CheckpointDirectory(directory).list_with_damaged();
  return all.empty() ? std::nullopt : std::optional(std::move(all.back()));
}

// What the program's files in a directory are, by the one that tells most, and what can be done with it.
std::string told_by(const FileNames& ours) {
  const auto checkpoint =
      std::find_if(ours.begin(), ours.end(), [](const std::string& name) { return name.starts_with("checkpoint-"); });
  if (checkpoint != ours.end())
    return fmt::format("a run ({}); continue it with --resume, replace it with",
                       checkpoint->substr(0, checkpoint->find('/')));
  if (ours.contains("metrics.jsonl")) return "a run (metrics.jsonl); continue it with --resume, replace it with";
  const auto weights = std::find_if(ours.begin(), ours.end(), is_weight_file_name);
  return fmt::format("a model that this program wrote ({}); replace it with",
                     weights != ours.end() ? *weights : *ours.begin());
}

// A run that was killed before its last checkpoint may have a model too, and goes on from the beginning.
bool holds_finished_model(const fs::path& directory, const OutputContents& contents) {
  if (!std::any_of(contents.ours.begin(), contents.ours.end(), is_weight_file_name)) return false;
  if (!contents.ours.contains("metrics.jsonl") || !path_exists(directory / "metrics.jsonl")) return false;
  const RecordedRun run = read_metrics_file(directory);
  return run.ended && run.ends.back().outcome == "finished";
}

}  // namespace

OutputDirectory::OutputDirectory(const OutputOptions& options, const InputOptions& inputs)
    : options_(options), inputs_(inputs), own_(options.output_dir) {
  const fs::path directory = options.output_dir;
  if (path_exists(directory) && !is_directory_path(directory))
    fail("{} exists and is not a directory; choose another --output_dir", directory.string());
  std::error_code error;
  if (fs::equivalent(directory, inputs.model, error))
    fail("--output_dir is the model's own directory {}; choose another one", directory.string());
  RunLock::require_free(directory);
  const OutputContents contents = look_into(directory, inputs.model);
  require_free(contents);
  if (!options.resume) {
    if (options.overwrite_output_dir) require_inputs_apart(inputs, directory, contents.ours);
    return;
  }
  if (options.resume == "latest") {
    checkpoint_ = latest_in(directory);
    if (!checkpoint_ && holds_finished_model(directory, contents))
      fail(
          "{} holds the model of a finished run and none of its checkpoints, without which a run cannot go on; replace "
          "it with --overwrite_output_dir, or choose another --output_dir",
          printable_path(directory));
    if (!checkpoint_) log_info("{} holds no checkpoint yet: starting from {}", directory.string(), inputs.model);
    return;
  }
  const fs::path given = *options.resume;
  if (given == "true" || given == "false")  // possible in a YAML file
    fail("--resume {}: give latest or a checkpoint's directory, or for a new run leave it out", given.string());
  if (!path_exists(given)) {
    const auto latest = CheckpointDirectory(directory).latest();
    fail("--resume {}: no such directory; {}", given.string(),
         latest ? fmt::format("the latest checkpoint there is {}", latest->path.string())
                : fmt::format("{} holds no checkpoint", directory.string()));
  }
  if (!path_exists(given / trainer_state_file))
    fail("{} is not a complete checkpoint: it has no {}", given.string(), trainer_state_file);
  checkpoint_ = Checkpoint{0, given};
}

void OutputDirectory::require_same_run(const TrainerState& state, const TrainOptions& asked, std::uint64_t data_key,
                                       std::uint64_t evaluation_key) const {
  const std::string file = (checkpoint_->path / trainer_state_file).string();
  TrainOptions same = with_recorded_split(asked, state.options, file);
  static_cast<LengthOptions&>(same) = recorded_length(asked, state.options);
  // When there are evaluations decides which is the best.
  std::vector<std::string_view> evaluations;
  if (asked.looks_for_best()) evaluations = {"eval_strategy", "eval_steps"};
  const auto differences = result_differences(train_option_table().view(same), state.options, file, evaluations);
  std::string changed, refused, names;
  bool all_may_change = true;
  for (const OptionDifference& difference : differences) {
    std::string& texts = may_change(asked, difference.spec->name) ? changed : refused;
    texts += (texts.empty() ? "" : "; ") + difference.text;
    if (&texts == &changed) continue;
    names += (names.empty() ? "" : ",") + difference.spec->name;
    all_may_change = all_may_change && difference.spec->may_change;
  }
  const std::string checkpoint = printable_path(checkpoint_->path);
  if (!refused.empty())
    fail(
        "{} is of a run with other settings: {}; give the recorded values, {}or begin anew from its weights with --model "
        "{} and another --output_dir",
        file, refused, all_may_change ? fmt::format("allow others from here on with --allow_changed {}, ", names) : "",
        checkpoint);
  if (!changed.empty()) log_info("from step {} on other settings, as --allow_changed has it: {}", state.step, changed);
  if (asked.batch_size != same.batch_size)
    log_info("from step {} on a micro-batch has {} rows, not {}", state.step, asked.batch_size, same.batch_size);
  if (state.data_key != data_key)
    fail("{} is of a run on other data: {} or the tokenizer has changed since; start a new run in another --output_dir",
         file, inputs_.data);
  if (state.evaluations && state.evaluations->data_key != evaluation_key)
    fail(
        "{} is of a run with other records to evaluate on: {} has changed since; start a new run in another "
        "--output_dir",
        file, inputs_.eval_data.value_or(inputs_.data));
}

void OutputDirectory::require_best(const TrainerState& state) const {
  const CheckpointDirectory own(options_.output_dir);
  std::error_code error;
  if (!fs::equivalent(checkpoint_->path, own.path_of(state.step), error))
    fail(
        "--load_best_model_at_end keeps the best checkpoint in --output_dir, and {} is elsewhere: copy it, and those "
        "of its run, to {}",
        printable_path(checkpoint_->path), options_.output_dir);
  const std::int64_t best = state.evaluations ? state.evaluations->best_step : 0;
  if (best > 0 && !path_exists(own.path_of(best) / trainer_state_file))
    fail(
        "{}, the best checkpoint of the run so far, is missing, and --load_best_model_at_end needs it: put it back, "
        "or resume from a checkpoint before it",
        printable_path(own.path_of(best)));
}

void OutputDirectory::require_free(const OutputContents& contents) const {
  if (!contents.ours.empty() && !options_.resume && !options_.overwrite_output_dir)
    fail("{} already holds {} --overwrite_output_dir, or choose another --output_dir", options_.output_dir,
         told_by(contents.ours));
  std::vector<std::string> foreign = contents.foreign;
  // A file of that name is in nobody's way but that of a run with samples.
  if (const std::string samples(samples_file); inputs_.sample_prompts &&
                                               path_exists(fs::path(options_.output_dir) / samples) &&
                                               !contents.ours.contains(samples))
    foreign.push_back(samples);
  // Checkpoints may have been brought here to go on from; one that would be replaced is set aside when it comes to
  // that.
  if (options_.resume) std::erase_if(foreign, [](const std::string& name) { return name.starts_with("checkpoint-"); });
  if (foreign.empty()) return;
  const std::string more = foreign.size() > 1 ? fmt::format(" (and {} more)", foreign.size() - 1) : std::string();
  fail("{}{} would be written over, and {} that this program wrote it; move it away, or choose another --output_dir",
       printable_path(fs::path(options_.output_dir) / foreign.front()), more,
       contents.recorded ? fmt::format("{} does not say", own_files_record) : "nothing says");
}

void OutputDirectory::require_usable(std::uint64_t bytes) const {
  std::error_code ignored;
  fs::path nearest = fs::absolute(options_.output_dir, ignored);
  while (nearest != nearest.root_path() && !path_exists(nearest)) nearest = nearest.parent_path();
  if (!is_directory_path(nearest)) fail_io("create directory", options_.output_dir, ENOTDIR);
  if (::faccessat(AT_FDCWD, nearest.c_str(), W_OK | X_OK, AT_EACCESS) != 0) fail_io("write to", nearest, errno);
  require_free_space(nearest, bytes);
}

void OutputDirectory::prepare(std::uint64_t bytes) {
  const fs::path directory = options_.output_dir;
  require_writable(directory);
  held_ = std::make_shared<const HeldDirectory>(directory);
  lock_.emplace(directory);
  if (options_.resume == "latest") {
    const auto now = latest_in(directory);
    if (now.has_value() != checkpoint_.has_value() || (now && now->step != checkpoint_->step))
      fail("another run has gone on in {} since this one began; start this one again", directory.string());
  }
  require_free_space(directory, bytes);
  remove_stale_temporaries_of_runs(directory);
}

CheckpointDirectory OutputDirectory::checkpoints() const {
  return held_ ? CheckpointDirectory(held_) : CheckpointDirectory(options_.output_dir);
}

bool OutputDirectory::owns(const std::string& name) const {
  const auto recorded = own_.read();
  return recorded && recorded->contains(name) && is_plain_file(options_.output_dir, name);
}

void OutputDirectory::begin() {
  const fs::path directory = options_.output_dir;
  OutputContents contents = look_into(directory, inputs_.model);
  require_free(contents);  // much time may have passed since the first look
  own_.add(contents.ours);
  if (options_.overwrite_output_dir && !contents.ours.empty()) {
    log_info("replacing the earlier run in {}: {}", directory.string(), describe(contents.ours));
    own_.remove(contents.ours);
  } else if (options_.resume && !checkpoint_) {
    // Killed before its first checkpoint: the metrics of the steps that are about to be run again would stand twice.
    for (const std::string& record : {std::string("metrics.jsonl"), std::string(samples_file)})
      if (contents.ours.contains(record)) own_.remove({record});
  }
  own_.add({"metrics.jsonl"});
}

}  // namespace so
