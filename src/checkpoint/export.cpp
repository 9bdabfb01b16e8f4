#include "checkpoint/export.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "base/bf16_arrays.h"
#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "base/json_text.h"
#include "base/progress.h"
#include "base/quantities.h"
#include "checkpoint/file_names.h"
#include "checkpoint/finite_state.h"
#include "checkpoint/output_contents.h"
#include "checkpoint/rank_files.h"
#include "checkpoint/source_model.h"
#include "io/atomic_directory.h"
#include "io/checksums.h"
#include "io/own_files.h"
#include "offload/engine.h"
#include "optim/moment_blocks.h"
#include "ranks/together.h"

namespace so {

namespace {

std::vector<TensorSpec> exported_tensors(const ModelFiles& source, DType dtype) {
  const ParameterFiles& files = source.files();
  std::vector<TensorSpec> specs = tensor_specs(source.layout(), dtype);
  for (int p = 0; p < source.layout().count(); ++p) specs[static_cast<std::size_t>(p)].name = files.name_of(p);
  for (const ParameterFiles::Copy& copy : files.copies())
    specs.push_back({copy.name, dtype, source.layout().parameter(copy.parameter).shape});
  for (const ParameterFiles::Carried& carried : files.carried())
    specs.push_back({carried.tensor, carried.info().dtype, carried.info().shape});
  return specs;
}

void write_buckets(OffloadEngine& engine, ModelExport& model) {
  ProgressReport progress("writing the model");
  std::int64_t done = 0, all = 0;
  for (const Bucket& bucket : engine.buckets()) all += bucket.own().size();
  for (const Bucket& bucket : engine.buckets()) {
    model.write_bucket(bucket);
    done += bucket.own().size();
    progress.update(static_cast<double>(done) / static_cast<double>(std::max<std::int64_t>(all, 1)),
                    format_bytes(static_cast<std::uint64_t>(done) * size_of(engine.formats().exported)));
  }
}

// All of a model directory but its weights.
void write_small_files(const ModelFiles& source, DType exported, const std::filesystem::path& directory,
                       const HfDirectory::CopyFailure& on_failure = {}) {
  source.directory().copy_auxiliary_files(directory, on_failure);
  write_text_file_atomically(directory / "config.json", config_with_dtype(source.config_json(), exported));
}

}  // namespace

std::vector<TensorSpec> tensor_specs(const ParameterLayout& layout, DType dtype) {
  std::vector<TensorSpec> specs;
  for (const Parameter& p : layout.parameters()) specs.push_back({p.name, dtype, p.shape});
  return specs;
}

std::vector<TensorSpec> trained_specs(const ParameterLayout& layout, DType dtype) {
  std::vector<TensorSpec> specs;
  for (const Parameter& p : layout.parameters())
    if (p.trained) specs.push_back({p.name, dtype, p.shape});
  return specs;
}

std::uint64_t exported_bytes(const ModelFiles& source, DType exported) {
  std::uint64_t bytes = 0;
  for (const TensorSpec& spec : exported_tensors(source, exported)) bytes += spec.bytes();
  return bytes;
}

std::uint64_t exported_bytes(const ParameterLayout& layout, DType exported) {
  std::uint64_t bytes = 0;
  for (const TensorSpec& spec : tensor_specs(layout, exported)) bytes += spec.bytes();
  return bytes;
}

std::uint64_t state_file_bytes(std::int64_t parameters, const NumberFormats& formats) {
  const std::size_t master = formats.exported == DType::f32 ? 0 : sizeof(float),
                    scales = formats.moments == DType::u8 ? 2 * sizeof(float) : 0;
  return static_cast<std::uint64_t>(parameters) * (master + 2 * size_of(formats.moments)) +
         static_cast<std::uint64_t>(moment_blocks(parameters)) * scales;
}

std::string config_with_dtype(const std::string& config_json, DType dtype) {
  const HeldNumbers held(config_json);
  auto config = nlohmann::ordered_json::parse(held.text());
  const auto note_in = [&](nlohmann::ordered_json& object) {
    int noted = 0;
    for (const char* key : {"torch_dtype", "dtype"}) {
      if (!object.contains(key)) continue;
      object[key] = std::string(name_of(dtype));
      ++noted;
    }
    return noted > 0;
  };
  bool noted = note_in(config);
  if (config.contains("text_config") && config["text_config"].is_object())
    noted = note_in(config["text_config"]) || noted;
  if (!noted) config["dtype"] = std::string(name_of(dtype));
  for (auto* object : {&config, config.contains("text_config") ? &config["text_config"] : &config})
    if (object->is_object()) object->erase("quantization_config");
  return held.restored(config.dump(2)) + "\n";
}

void for_each_part(const ParameterLayout& layout, Range range, const std::function<void(int, Range, Range)>& body) {
  for (int p = layout.first_ending_after(range.begin); p < layout.count(); ++p) {
    const Range own = layout.range(p);
    if (own.begin >= range.end) break;
    const Range flat{std::max(own.begin, range.begin), std::min(own.end, range.end)};
    if (flat.size() > 0) body(p, {flat.begin - own.begin, flat.end - own.begin}, flat);
  }
}

ModelExport::ModelExport(OffloadEngine& engine, const ModelFiles& source, const std::filesystem::path& directory,
                         const std::filesystem::path& destination, std::uint64_t max_shard_bytes,
                         const HfDirectory::CopyFailure& on_failure)
    : engine_(engine),
      source_(source),
      destination_(destination),
      writer_(directory, exported_tensors(source, engine.formats().exported), max_shard_bytes,
              writers_of(engine.ranks())) {
  if (engine.ranks().rank() == 0) write_small_files(source, engine.formats().exported, directory, on_failure);
}

void ModelExport::write_bucket(const Bucket& bucket) {
  const ParameterLayout& layout = engine_.layout();
  const std::size_t size = size_of(engine_.formats().exported);
  std::vector<bf16> narrow;
  const auto write_piece = [&](std::int64_t begin, std::span<const float> master) {
    std::span<const std::byte> bytes = std::as_bytes(master);
    if (engine_.formats().exported == DType::bf16) {
      narrow.resize(master.size());
      round_to_bf16(master.data(), narrow.data(), master.size());
      bytes = std::as_bytes(std::span(narrow));
    }
    const Range piece{begin, begin + static_cast<std::int64_t>(master.size())};
    for_each_part(layout, piece, [&](int p, Range inside, Range flat) {
      const std::span<const std::byte> part = bytes.subspan(static_cast<std::size_t>(flat.begin - begin) * size,
                                                            static_cast<std::size_t>(flat.size()) * size);
      const std::uint64_t at = static_cast<std::uint64_t>(inside.begin) * size;
      const std::string& name = layout.parameter(p).name;
      require_finite_for_save(engine_.formats().exported, part.data(), part.size() / size, name, "weight",
                              destination_);
      writer_.write(source_.files().name_of(p), at, part);
      for (const ParameterFiles::Copy& copy : source_.files().copies())
        if (copy.parameter == p) writer_.write(copy.name, at, part);
    });
  };
  // In pieces, so that what is rounded takes no memory worth planning.
  constexpr std::size_t at_once = std::size_t{1} << 18;
  engine_.read_state(StateArray::master, bucket.range(), [&](std::int64_t begin, std::span<const float> master) {
    for (std::size_t done = 0; done < master.size(); done += at_once)
      write_piece(begin + static_cast<std::int64_t>(done),
                  master.subspan(done, std::min(at_once, master.size() - done)));
  });
}

void ModelExport::copy_carried() {
  constexpr std::uint64_t at_once = std::uint64_t{1} << 20;
  std::vector<std::byte> piece;
  for (const ParameterFiles::Carried& carried : source_.files().carried()) {
    const std::uint64_t bytes = carried.info().bytes();
    for (std::uint64_t at = 0; at < bytes; at += at_once) {
      piece.resize(static_cast<std::size_t>(std::min(at_once, bytes - at)));
      carried.file->read_into(carried.tensor, at, piece);
      writer_.write(carried.tensor, at, piece);
    }
    carried.file->drop_cache(carried.tensor, 0, bytes);
    carried.file->require_unchanged();
  }
}

void ModelExport::finish() {
  if (engine_.ranks().rank() == 0) copy_carried();
  writer_.finish();
}

void export_model(OffloadEngine& engine, const ModelFiles& source, const std::filesystem::path& directory,
                  std::uint64_t max_shard_bytes) {
  Communicator& ranks = engine.ranks();
  const TimeLimitAtLeast patience(ranks, seconds_for_files(exported_bytes(source, engine.formats().exported)));
  std::optional<AtomicDirectory> staged;  // rank 0's
  std::optional<ModelExport> model;
  const std::filesystem::path path = on_first_rank(ranks, [&] {
    staged.emplace(directory / export_directory);
    model.emplace(engine, source, staged->path(), directory, max_shard_bytes);
    return staged->path().string();
  });
  const auto write_own = [&] {
    if (!model) {
      require_shared(path);
      model.emplace(engine, source, path, directory, max_shard_bytes);
    }
    write_buckets(engine, *model);
    model->finish();
    return std::to_string(model->written_bytes());
  };
  const std::vector<std::string> written = gather_texts(ranks, write_own);
  require_all_written(written, model->data_bytes());
  const auto checksums = ranks.size() == 1 ? model->checksums() : checksums_by_ranks(ranks, path, model->files());
  together(ranks, [&] {
    if (!staged) return;
    write_checksums(staged->path(), {{}, checksums});
    put_model_into(staged->path(), staged->final_path().parent_path());
  });
}

void export_checkpoint_model(const std::filesystem::path& checkpoint, Communicator& ranks, const ModelFiles& source,
                             DType exported, const std::filesystem::path& directory) {
  const TimeLimitAtLeast patience(ranks, seconds_for_files(exported_bytes(source, exported)));
  together(ranks, [&] {
    if (ranks.rank() != 0) return;
    const std::optional<Checksums> listed = read_checksums(checkpoint);
    if (!listed) fail("{} has no {}, by which its model could be checked", printable_path(checkpoint), checksums_file);
    AtomicDirectory staged(directory / export_directory);
    Checksums weights;
    for (const auto& [name, checksum] : listed->files) {
      if (!is_weight_file_name(name)) continue;
      copy_regular_file(checkpoint / name, staged.path() / name, checksum.bytes);
      weights.files.emplace(name, checksum);
    }
    if (const auto damage = find_damage(staged.path(), weights); !damage.empty())
      fail("{} is damaged: it {}", printable_path(checkpoint / damage.front().file), damage.front().what);
    write_small_files(source, exported, staged.path());
    write_checksums(staged.path(), std::move(weights));
    put_model_into(staged.path(), staged.final_path().parent_path());
  });
}

void put_model_into(const std::filesystem::path& staged, const std::filesystem::path& directory) {
  const OwnFiles own(directory);
  const FileNames names = files_in(staged);
  std::vector<std::string> files(names.begin(), names.end());
  // Weights, then the small files, config.json last: who sees a new config.json sees its weights.
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) {
    const auto rank = [](const std::filesystem::path& f) {
      return f == "config.json" ? 2 : f.extension() == ".safetensors" ? 0 : 1;
    };
    return rank(a) != rank(b) ? rank(a) < rank(b) : a < b;
  });
  // Weight files of our earlier model that this one does not replace would contradict it.
  FileNames stale;
  for (const std::string& name : own.read().value_or(FileNames()))
    if (is_weight_file_name(name) && !names.contains(name)) stale.insert(name);
  // A folder or file that became a link since the run began is somebody else's.
  for (const std::string& name : files)
    for (const std::filesystem::path& part : {std::filesystem::path(name).parent_path(), std::filesystem::path(name)})
      if (!part.empty() && is_link_path(directory / part))
        fail("{} is a link, which is neither replaced nor followed; remove it", printable_path(directory / part));
  own.add(names);
  if (!stale.empty()) own.remove(stale);
  std::set<std::filesystem::path> folders{directory};
  for (const std::string& name : files) {
    const std::filesystem::path to = directory / name;
    if (folders.insert(to.parent_path()).second) make_directories(to.parent_path());
    rename_path(staged / name, to);
  }
  for (const std::filesystem::path& folder : folders) fsync_directory(folder);
}

}  // namespace so
