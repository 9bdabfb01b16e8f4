#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/units.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/export.h"
#include "checkpoint/finite_state.h"
#include "checkpoint/stream_tensors.h"
#include "io/atomic_directory.h"
#include "io/checksums.h"
#include "io/own_files.h"

namespace so {
namespace {

constexpr std::string_view word_of(StateArray array) {
  return array == StateArray::master ? "weight" : array == StateArray::first_moment ? "first moment" : "second moment";
}

void write_part(SafetensorsWriter& writer, OffloadEngine& engine, const Bucket& bucket, StateArray array,
                const std::filesystem::path& checkpoint) {
  const ParameterLayout& layout = engine.layout();
  engine.read_state(array, bucket.range(), [&](std::int64_t begin, std::span<const float> values) {
    const Range piece{begin, begin + static_cast<std::int64_t>(values.size())};
    for_each_part(layout, piece, [&](int p, Range inside, Range part) {
      const std::string& name = layout.parameter(p).name;
      const std::span<const float> here =
          values.subspan(static_cast<std::size_t>(part.begin - begin), static_cast<std::size_t>(part.size()));
      require_finite_for_save(DType::f32, here.data(), here.size(), name, word_of(array), checkpoint);
      writer.write(name, static_cast<std::uint64_t>(inside.begin) * sizeof(float), std::as_bytes(here));
    });
  });
}

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

// A checkpoint that would be replaced, but holds what is not ours, keeps all it has under another name.
void set_aside_if_foreign(const OwnFiles& own, const std::filesystem::path& checkpoint) {
  std::error_code error;
  if (!std::filesystem::is_directory(checkpoint, error)) return;
  const std::string what = foreign_in(own, checkpoint);
  if (what.empty()) return;
  std::filesystem::path kept;
  for (int i = 1; kept.empty() || std::filesystem::exists(std::filesystem::symlink_status(kept, error)); ++i)
    kept = fmt::format("{}.kept-{}", checkpoint.string(), i);
  std::filesystem::rename(checkpoint, kept, error);
  if (error) fail_io("rename", checkpoint, error.value());
  log_warning("{} holds {}, which this program did not write: it is now {}", checkpoint.string(), printable(what),
              kept.string());
}

// place(piece) for the pieces of a file that holds an fp32 tensor for each parameter.
void stream_state(const std::filesystem::path& file, const ParameterLayout& layout, LoadingRing& ring, Stream& stream,
                  int readers, WeightForms forms, const std::function<void(const WeightPiece&)>& place) {
  const SafetensorsReader reader(file);
  std::vector<ShardReader::Request> requests;
  for (int p = 0; p < layout.count(); ++p) {
    const Parameter& parameter = layout.parameter(p);
    const TensorInfo& info = reader.info(parameter.name);
    if (info.dtype != DType::f32 || info.shape != parameter.shape)
      fail("{}: tensor '{}' is {} {}, expected float32 {}", file.string(), parameter.name, name_of(info.dtype),
           shape_string(info.shape), shape_string(parameter.shape));
    requests.push_back({&reader, parameter.name, layout.range(p).begin, forms, nullptr, {}});
  }
  if (static_cast<int>(reader.names().size()) != layout.count())
    fail("{}: holds {} tensors, the model has {}", file.string(), reader.names().size(), layout.count());
  stream_tensors(ring, stream, std::move(requests), readers, PageCache::drop, NonFinite::refuse,
                 "loading " + file.string(), place);
}

// Copies a piece of fp32 moments to where their owner keeps them.
void place_moments(OffloadEngine& engine, StateArray array, const WeightPiece& piece, ThreadPool& pool) {
  engine.write_state(array, {piece.begin, piece.begin + piece.size()}, [&](std::int64_t at, std::span<float> to) {
    const float* const from = piece.wide.data() + (at - piece.begin);
    pool.parallel_for(static_cast<std::int64_t>(to.size()), 1 << 16, [&](std::int64_t begin, std::int64_t end) {
      std::copy(from + begin, from + end, to.data() + begin);
    });
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

}  // namespace

CheckpointWriter::CheckpointWriter(OffloadEngine& engine, const ModelFiles& source, CheckpointDirectory directory,
                                   int save_total_limit)
    : engine_(engine), source_(source), directory_(std::move(directory)), save_total_limit_(save_total_limit) {}

CheckpointWriter::~CheckpointWriter() {
  try {
    wait();
  } catch (const std::exception& error) {
    log_error("{}", error.what());
  }
}

std::uint64_t CheckpointWriter::bytes() const {
  return exported_bytes(source_, engine_.formats().exported) +
         state_bytes(engine_.layout().parameter_elements(), engine_.formats().exported);
}

void CheckpointWriter::start(const TrainerState& state, std::uint64_t room) {
  wait();
  engine_.begin_save();
  writing_ = true;
  written_elements_ = 0;
  thread_ = std::thread([this, state, room] {
    try {
      write(state, room);
    } catch (...) {
      error_ = std::current_exception();
    }
    engine_.gate().end();
    std::lock_guard lock(mutex_);
    writing_ = false;
    ended_.notify_all();
  });
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
  const auto all = static_cast<double>(engine_.layout().elements());
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, std::chrono::milliseconds(200), [this] { return !writing_; }))
    progress.update(static_cast<double>(written_elements_) / all, size);
}

void CheckpointWriter::write(const TrainerState& state, std::uint64_t room) {
  const auto start = std::chrono::steady_clock::now();
  const ParameterLayout& layout = engine_.layout();
  const auto specs = tensor_specs(layout, DType::f32);
  // A run that was resumed from an earlier checkpoint meets its own later ones again: same step, same bytes.
  AtomicDirectory directory(directory_.path_of(state.step), IfExists::replace);
  require_free_space(directory.path(), bytes() + room);
  ModelExport model(engine_, source_, directory.path(), directory_.path_of(state.step));
  // Each file says of which step it is: a file of another checkpoint is known by more than its checksum.
  const std::map<std::string, std::string> metadata{{step_metadata, std::to_string(state.step)}};
  std::optional<SafetensorsWriter> master;
  if (engine_.formats().exported != DType::f32) master.emplace(directory.path() / master_file, specs, metadata);
  SafetensorsWriter first(directory.path() / first_moment_file, specs, metadata),
      second(directory.path() / second_moment_file, specs, metadata);
  for (const Bucket& bucket : engine_.buckets()) {
    model.write_bucket(bucket);
    const std::filesystem::path shown = directory_.path_of(state.step);
    if (master) write_part(*master, engine_, bucket, StateArray::master, shown);
    write_part(first, engine_, bucket, StateArray::first_moment, shown);
    write_part(second, engine_, bucket, StateArray::second_moment, shown);
    engine_.gate().passed(bucket.index());
    std::lock_guard lock(mutex_);
    written_elements_ += bucket.range().size();
  }
  model.finish();
  if (master) master->finish();
  first.finish();
  second.finish();
  write_text_file_atomically(directory.path() / trainer_state_file, to_json(state));
  Checksums checksums{state.step, model.checksums()};
  if (master) checksums.files.emplace(master_file, master->checksum());
  checksums.files.emplace(first_moment_file, first.checksum());
  checksums.files.emplace(second_moment_file, second.checksum());
  write_checksums(directory.path(), std::move(checksums));
  const OwnFiles own(directory_.path());
  set_aside_if_foreign(own, directory.final_path());
  own.add(files_in(directory.path(), directory.final_path().filename().string() + "/"));
  directory.commit();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  log_info("checkpoint saved: {} ({}, {:.1f} s)", directory_.path_of(state.step).string(), format_bytes(bytes()),
           took.count());
  // While steps are skipped, the checkpoint from before them may be what is wanted back.
  std::optional<Checkpoint> good;
  if (state.skipped_in_a_row > 0) good = directory_.latest_up_to(state.step - state.skipped_in_a_row);
  const auto removable = [&](const Checkpoint& checkpoint) {
    return (!good || checkpoint.step != good->step) && foreign_in(own, checkpoint.path).empty();
  };
  for (const Checkpoint& removed : directory_.rotate(save_total_limit_, removable)) {
    own.remove(recorded_in(own, removed.path));
    log_info("checkpoint pruned: {}", removed.path.string());
  }
}

void load_checkpoint(const std::filesystem::path& checkpoint, OffloadEngine& engine, Stream& compute,
                     ThreadPool& pool) {
  const ModelFiles model(checkpoint);
  require_same_parameters(checkpoint, model.layout(), engine.layout());
  // One at a time: a plan has one.
  const auto make_ring = [&] {
    return LoadingRing(compute.device(), LoadingRing::slot_bytes_for(engine.layout().elements()));
  };
  if (std::filesystem::exists(checkpoint / master_file)) {
    LoadingRing ring = make_ring();
    stream_state(checkpoint / master_file, engine.layout(), ring, compute, pool.size(), engine.forms(DType::f32),
                 [&](const WeightPiece& piece) { engine.place_weights(compute, piece); });
  } else {
    // The weights are the masters only where nothing was rounded.
    for (const Parameter& p : model.layout().parameters()) {
      const DType dtype = model.directory().info(p.name).dtype;
      if (dtype != DType::f32)
        fail("{} is missing: the checkpoint's weights are {} (tensor '{}'), so its fp32 weights cannot be restored",
             (checkpoint / master_file).string(), name_of(dtype), p.name);
    }
    model.load(engine, compute, pool);
  }
  LoadingRing ring = make_ring();
  for (const StateArray array : {StateArray::first_moment, StateArray::second_moment})
    stream_state(checkpoint / (array == StateArray::first_moment ? first_moment_file : second_moment_file),
                 engine.layout(), ring, compute, pool.size(), {.wide = true, .narrow = false},
                 [&](const WeightPiece& piece) { place_moments(engine, array, piece, pool); });
}

}  // namespace so
