#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <new>
#include <optional>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/quantities.h"
#include "checkpoint/export.h"
#include "checkpoint/file_names.h"
#include "checkpoint/moment_tensors.h"
#include "checkpoint/rank_files.h"
#include "checkpoint/source_model.h"
#include "checkpoint/state_files.h"
#include "checkpoint/stream_tensors.h"
#include "io/atomic_directory.h"
#include "io/checksums.h"
#include "io/own_files.h"
#include "offload/engine.h"
#include "ranks/together.h"

namespace so {
namespace {

// The recorded files of a checkpoint, as the record names them.
FileNames recorded_in(const OwnFiles& own, const std::filesystem::path& checkpoint) {
  const std::string prefix = checkpoint.filename().string() + "/";
  FileNames names;
  for (const std::string& name : own.read().value_or(FileNames()))
    if (name.starts_with(prefix)) names.insert(name);
  return names;
}

// Something in it that this program did not write, by its record; empty: nothing.
std::string foreign_in(const OwnFiles& own, const std::filesystem::path& checkpoint) {
  const FileNames ours = recorded_in(own, checkpoint);
  for (const std::string& name : files_in(checkpoint, checkpoint.filename().string() + "/", 8))
    if (!ours.contains(name) || !is_plain_file(checkpoint.parent_path(), name)) return name;
  return {};
}

void refuse_link(const std::filesystem::path& checkpoint) {
  if (is_link_path(checkpoint))
    fail(
        "{} is a link where the run's own checkpoints go, and it is neither replaced nor renamed; remove it, or choose "
        "another --output_dir",
        printable_path(checkpoint));
}

// Gives a checkpoint another name, under which it keeps all it has and is nobody's. Returns that.
std::filesystem::path set_aside(const OwnFiles& own, const std::filesystem::path& checkpoint) {
  refuse_link(checkpoint);
  std::error_code error;
  std::filesystem::path kept;
  for (int i = 1; kept.empty() || std::filesystem::exists(std::filesystem::symlink_status(kept, error)); ++i)
    kept = fmt::format("{}.kept-{}", checkpoint.string(), i);
  const FileNames ours = recorded_in(own, checkpoint);
  std::filesystem::rename(checkpoint, kept, error);
  if (error) fail_io("rename", checkpoint, error.value());
  own.remove(ours);
  return kept;
}

// One that would be replaced, but holds what is not ours.
void set_aside_if_foreign(const OwnFiles& own, const std::filesystem::path& checkpoint) {
  std::error_code error;
  if (!std::filesystem::is_directory(checkpoint, error)) return;
  const std::string what = foreign_in(own, checkpoint);
  if (what.empty()) return;
  const std::filesystem::path kept = set_aside(own, checkpoint);
  log_warning("{} holds {}, which this program did not write: it is now {}", checkpoint.string(), printable(what),
              kept.string());
}

// The newest is the one to resume from and the last to be pruned, so none of another course may seem to be it.
void set_aside_beyond(const OwnFiles& own, const CheckpointDirectory& directory, std::int64_t step) {
  for (const Checkpoint& checkpoint : directory.list_with_damaged()) {
    if (checkpoint.step <= step) continue;
    const std::filesystem::path kept = set_aside(own, checkpoint.path);
    log_warning("{} is of the course that the run took before it was resumed from step {}: it is now {}",
                checkpoint.path.string(), step, kept.string());
  }
}

// A request for each part of the tensors that is kept by itself; what lies in host memory is read right into it.
std::vector<ShardReader::Request> requests_into(const std::vector<OffloadEngine::StatePlace>& places,
                                                std::vector<ShardReader::Request> requests) {
  std::vector<Range> ranges;
  for (const OffloadEngine::StatePlace& place : places) ranges.push_back(place.range);
  requests = requests_within(ranges, std::move(requests));
  for (ShardReader::Request& request : requests) {
    const std::int64_t begin = request.at + request.first;
    const auto place = std::partition_point(places.begin(), places.end(),
                                            [&](const OffloadEngine::StatePlace& p) { return p.range.end <= begin; });
    if (place->wide != nullptr) request.wide_to = place->wide + (begin - place->range.begin);
    if (place->narrow != nullptr) request.narrow_to = place->narrow + (begin - place->range.begin);
  }
  return requests;
}

// Loads a file that holds a tensor for each trained parameter (moment_tensors.h): this rank's slices of them.
void load_state(StateArray array, const std::filesystem::path& file, OffloadEngine& engine, LoadingRing& ring,
                Stream& stream, int readers) {
  const ParameterLayout& layout = engine.layout();
  const SafetensorsReader reader(file);
  const WeightForms forms = array == StateArray::master ? engine.forms(DType::f32) : engine.moment_forms();
  std::vector<ShardReader::Request> requests;
  std::size_t tensors = 0;
  for (int p = 0; p < layout.count(); ++p) {
    const Parameter& parameter = layout.parameter(p);
    if (!parameter.trained) continue;
    requests.push_back({&reader, parameter.name, layout.range(p).begin, forms, nullptr, {}});
    requests.back().codes = state_codes(reader, parameter, array);
    tensors += requests.back().codes ? 2 : 1;
  }
  if (reader.names().size() != tensors)
    fail("{}: holds {} tensors, {} are expected of the {} that the run trains", file.string(), reader.names().size(),
         tensors, requests.size());
  stream_tensors(ring, stream, requests_into(engine.state_places(array), std::move(requests)), readers, PageCache::drop,
                 NonFinite::refuse, "loading " + file.string(), [&](const WeightPiece& piece) {
                   if (array == StateArray::master)
                     engine.place_weights(stream, piece);
                   else
                     engine.place_moments(stream, array, piece);
                 });
}

void require_same_parameters(const std::filesystem::path& checkpoint, const ParameterLayout& stored,
                             const ParameterLayout& ours) {
  for (int p = 0; p < std::min(stored.count(), ours.count()); ++p) {
    const Parameter &theirs = stored.parameter(p), &mine = ours.parameter(p);
    if (theirs.name != mine.name || theirs.shape != mine.shape)
      fail("{} is of another model: it has '{}' {} where the run has '{}' {}", checkpoint.string(), theirs.name,
           shape_string(theirs.shape), mine.name, shape_string(mine.shape));
  }
  if (stored.count() != ours.count())
    fail("{} is of another model: it has {} tensors, the run has {}", checkpoint.string(), stored.count(),
         ours.count());
}

// The checkpoint has them too, of when it was written; what is written from now on takes them from the source.
void require_same_carried(const std::filesystem::path& checkpoint, const ParameterFiles& stored,
                          const ModelFiles& source) {
  const auto shapes = [](const ParameterFiles& files) {
    std::map<std::string, std::string> all;
    for (const ParameterFiles::Carried& carried : files.carried())
      all.emplace(carried.tensor,
                  fmt::format("{} {}", name_of(carried.info().dtype), shape_string(carried.info().shape)));
    return all;
  };
  const auto theirs = shapes(stored), ours = shapes(source.files());
  const auto different = [&](const auto& from, const auto& in) {
    return std::find_if(from.begin(), from.end(), [&](const auto& one) {
      const auto found = in.find(one.first);
      return found == in.end() || found->second != one.second;
    });
  };
  for (const auto& [from, in] : {std::pair(&theirs, &ours), std::pair(&ours, &theirs)})
    if (const auto one = different(*from, *in); one != from->end())
      fail(
          "{} is of another model: tensor '{}', which training does not change, is not the same there and in {}; give the "
          "model that the run began with",
          checkpoint.string(), printable(one->first), printable_path(source.directory().path()));
}

}  // namespace

CheckpointWriter::CheckpointWriter(OffloadEngine& engine, const ModelFiles& source, CheckpointDirectory directory,
                                   int save_total_limit, bool keeps_best, bool only_model)
    : engine_(engine),
      source_(source),
      directory_(std::move(directory)),
      save_total_limit_(save_total_limit),
      keeps_best_(keeps_best),
      only_model_(only_model),
      ranks_(engine.ranks().duplicate()) {
  ranks_->set_least_time_limit(seconds_for_files(bytes()));
}

void CheckpointWriter::goes_on_from(std::int64_t step) {
  for (const Checkpoint& checkpoint : directory_.list_with_damaged())
    if (checkpoint.step > step) refuse_link(checkpoint.path);
  resumed_from_ = step;
}

CheckpointWriter::~CheckpointWriter() {
  try {
    wait();
  } catch (const std::exception& error) {
    log_error("{}", error.what());
  }
}

std::uint64_t CheckpointWriter::bytes() const {
  const DType exported = engine_.formats().exported;
  const std::uint64_t model = exported_bytes(source_, exported);
  return only_model_ ? model
                     : model + state_file_bytes(engine_.layout().trained_parameter_elements(), engine_.formats());
}

void CheckpointWriter::start(const TrainerState& state, std::uint64_t room) {
  wait();
  engine_.begin_save();
  writing_ = true;
  written_elements_ = 0;
  try {
    thread_ = std::thread([this, state, room] {
      try {
        write(state, room);
      } catch (const std::bad_alloc&) {
        error_ = std::make_exception_ptr(Error("there is too little host memory to write a checkpoint"));
      } catch (...) {
        error_ = std::current_exception();
      }
      end();
    });
  } catch (const std::system_error& error) {
    error_ = std::make_exception_ptr(Error(fmt::format("no thread can be started: {}", error.code().message())));
    end();
  }
}

void CheckpointWriter::end() {
  engine_.gate().end();
  const std::lock_guard lock(mutex_);
  writing_ = false;
  ended_.notify_all();
}

bool CheckpointWriter::writing() {
  const std::lock_guard lock(mutex_);
  return writing_;
}

void CheckpointWriter::wait() {
  if (thread_.joinable()) {
    show_progress();
    thread_.join();
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void CheckpointWriter::show_progress() {
  ProgressReport progress("saving the checkpoint", PlainLines::once);  // most of the time is the disk's, at 100%
  const std::string size = format_bytes(bytes());
  std::int64_t own = 0;
  for (const Range& range : engine_.own_ranges()) own += range.size();
  const auto all = static_cast<double>(std::max<std::int64_t>(own, 1));
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, std::chrono::milliseconds(200), [this] { return !writing_; }))
    progress.update(static_cast<double>(written_elements_) / all, size);
}

void CheckpointWriter::write(const TrainerState& state, std::uint64_t room) {
  const auto start = std::chrono::steady_clock::now();
  const std::filesystem::path destination = directory_.path_of(state.step);
  std::optional<AtomicDirectory> directory;  // rank 0's
  std::optional<StateFiles> files;
  const std::filesystem::path path = on_first_rank(*ranks_, [&] {
    // A directory that has this name already is no whole checkpoint, or commit() sets it aside.
    directory.emplace(destination, IfExists::replace);
    require_free_space(directory->path(), bytes() + room);
    files.emplace(engine_, source_, directory->path(), destination, state.step, only_model_);
    return directory->path().string();
  });
  const std::vector<std::string> written = gather_texts(*ranks_, [&] {
    try {
      if (!files) {
        require_shared(path);
        files.emplace(engine_, source_, path, destination, state.step, only_model_);
      }
      write_own(*files);
    } catch (...) {
      engine_.gate().end();  // updates need not wait until the other ranks learn of it
      throw;
    }
    return std::to_string(files->written_bytes());
  });
  require_all_written(written, files->data_bytes());
  Checksums checksums{state.step,
                      ranks_->size() == 1 ? files->checksums() : checksums_by_ranks(*ranks_, path, files->files())};
  together(*ranks_, [&] {
    if (!directory) return;
    commit(*directory, state, std::move(checksums));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    log_info("checkpoint saved: {} ({}, {:.1f} s)", destination.string(), format_bytes(bytes()), took.count());
    prune(state);
  });
}

void CheckpointWriter::write_own(StateFiles& files) {
  for (const Bucket& bucket : engine_.buckets()) {
    files.write_bucket(bucket);
    engine_.gate().passed(bucket.index());
    std::lock_guard lock(mutex_);
    written_elements_ += bucket.own().size();
  }
  files.finish();
}

void CheckpointWriter::commit(AtomicDirectory& directory, const TrainerState& state, Checksums checksums) {
  TrainerState written = state;
  written.only_model = only_model_;
  write_text_file_atomically(directory.path() / trainer_state_file, to_json(written));
  write_checksums(directory.path(), std::move(checksums));
  const OwnFiles own(directory_.path());
  set_aside_if_foreign(own, directory.final_path());
  if (resumed_from_) set_aside_beyond(own, directory_, *resumed_from_);
  resumed_from_.reset();
  own.add(files_in(directory.path(), directory.final_path().filename().string() + "/"));
  directory.commit();
}

void CheckpointWriter::prune(const TrainerState& state) {
  const OwnFiles own(directory_.path());
  // While steps are skipped, the checkpoint from before them may be what is wanted back.
  std::optional<Checkpoint> good;
  if (state.skipped_in_a_row > 0) good = directory_.latest_up_to(state.step - state.skipped_in_a_row);
  const std::int64_t best = keeps_best_ && state.evaluations ? state.evaluations->best_step : 0;
  const auto removable = [&](const Checkpoint& checkpoint) {
    return (!good || checkpoint.step != good->step) && checkpoint.step != best &&
           foreign_in(own, checkpoint.path).empty();
  };
  for (const Checkpoint& removed : directory_.rotate(directory_.newest_beside(best, save_total_limit_), removable)) {
    own.remove(recorded_in(own, removed.path));
    log_info("checkpoint pruned: {}", removed.path.string());
  }
}

namespace {

// Does all of load_checkpoint() that is no collective.
void place_own(const std::filesystem::path& checkpoint, const ModelFiles& source, OffloadEngine& engine,
               Stream& compute, ThreadPool& pool) {
  const ModelFiles model(checkpoint);
  require_same_parameters(checkpoint, model.layout(), engine.layout());
  require_same_carried(checkpoint, model.files(), source);
  // One at a time: a plan has one.
  const auto make_ring = [&] {
    return LoadingRing(compute.device(), LoadingRing::slot_bytes_for(engine.layout().elements()));
  };
  if (std::filesystem::exists(checkpoint / master_file)) {
    LoadingRing ring = make_ring();
    load_state(StateArray::master, checkpoint / master_file, engine, ring, compute, pool.size());
    if (engine.layout().has_frozen()) model.place_frozen(engine, ring, compute, pool);
  } else {
    // The weights are the masters only where nothing was rounded.
    for (int p = 0; p < model.layout().count(); ++p) {
      const std::string& name = model.files().name_of(p);
      const DType dtype = model.directory().info(name).dtype;
      if (dtype != DType::f32)
        fail("{} is missing: the checkpoint's weights are {} (tensor '{}'), so its fp32 weights cannot be restored",
             (checkpoint / master_file).string(), name_of(dtype), name);
    }
    model.place_own(engine, compute, pool);
  }
  LoadingRing ring = make_ring();
  load_state(StateArray::first_moment, checkpoint / first_moment_file, engine, ring, compute, pool.size());
  load_state(StateArray::second_moment, checkpoint / second_moment_file, engine, ring, compute, pool.size());
}

}  // namespace

void load_checkpoint(const std::filesystem::path& checkpoint, const ModelFiles& source, OffloadEngine& engine,
                     Stream& compute, ThreadPool& pool) {
  NumberFormats widest = engine.formats();  // that the files may have
  widest.moments = DType::f32;
  const std::uint64_t bytes = state_file_bytes(engine.layout().trained_parameter_elements(), widest);
  const TimeLimitAtLeast patience(engine.ranks(), seconds_for_files(bytes));
  together(engine.ranks(), [&] { place_own(checkpoint, source, engine, compute, pool); });
  engine.gather_placed(compute);
}

}  // namespace so
