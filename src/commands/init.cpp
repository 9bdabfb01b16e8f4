#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/cpus.h"
#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/quantities.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/export.h"
#include "checkpoint/file_names.h"
#include "checkpoint/named_model.h"
#include "checkpoint/output_contents.h"
#include "checkpoint/selection_biases.h"
#include "commands/command.h"
#include "commands/shared_rows.h"
#include "io/atomic_directory.h"
#include "io/checksums.h"
#include "io/hf_directory.h"
#include "io/own_files.h"
#include "io/run_lock.h"
#include "model/flops.h"
#include "model/initialize.h"
#include "model/parameters.h"
#include "ops/runtime.h"

namespace so {
namespace {

struct InitOptions : DtypeOption, MessageOptions {
  std::string config;  // a config.json, a directory that has one, or a preset's name
  std::optional<std::string> tokenizer;
  std::string output_dir;
  bool overwrite_output_dir = false;
  std::int64_t seed = 42;
};

OptionTable<InitOptions> init_table() {
  using namespace default_from;
  using O = InitOptions;
  OptionTable<O> t;
  t.group("Model");
  add_config_row(t, &O::config).required();
  t.add("tokenizer", &O::tokenizer, "Directory whose tokenizer files are copied along")
      .metavar("DIR")
      .hub(HubUse::small_files)
      .default_from(ours);
  t.add("output_dir", &O::output_dir, "Model directory to write").metavar("DIR").required();
  t.add(
       "overwrite_output_dir", &O::overwrite_output_dir,
       "Replace the model or run in an output directory that is not empty: the files that this program wrote there, by "
       "its record of them, and nothing else")
      .default_from(ours);
  t.add("seed", &O::seed, "Seed of the random weights").at_least(0).default_from("TrainingArguments");
  t.borrow(dtype_rows(), ours);
  t.row("dtype").help = "Number format of the stored weights; auto: what config.json says";
  t.group("Messages");
  t.take(message_rows());
  return t;
}

namespace fs = std::filesystem;

// Without "/" and "/." at its end, which name the same directory.
fs::path trimmed(fs::path path) {
  while (path.has_parent_path() && path != path.root_path() && (!path.has_filename() || path.filename() == "."))
    path = path.parent_path();
  return path;
}

// Refuses a directory that holds anything, unless it is to be overwritten and what init would write over there is this
// program's. Gives what goes.
FileNames require_replaceable(const fs::path& output, const InitOptions& options) {
  if (!path_exists(output)) {
    if (is_link_path(output))
      fail("{} is a symbolic link to nothing; choose another --output_dir", printable_path(output));
    return {};
  }
  if (!is_directory_path(output))
    fail("{} exists and is not a directory; choose another --output_dir", printable_path(output));
  RunLock::require_free(output);
  if (entries_of(output).empty()) return {};
  if (!options.overwrite_output_dir)
    fail("{} is not empty; choose another --output_dir, or replace the model in it with --overwrite_output_dir",
         printable_path(output));
  const OutputContents contents = look_into(output, options.tokenizer.value_or(""));
  if (!contents.foreign.empty())
    fail("{} would be written over, and {} that this program wrote it; move it away, or choose another --output_dir",
         printable_path(output / contents.foreign.front()),
         contents.recorded ? fmt::format("{} does not say", own_files_record) : "nothing says");
  return contents.ours;
}

void write_random_weights(HfModelWriter& writer, const DecoderSpec& spec, const ParameterLayout& layout, DType dtype,
                          std::uint64_t seed) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(layout.parameter_elements()) * size_of(dtype);
  ThreadPool pool("init", usable_cpus(), false);
  constexpr std::int64_t piece = 1 << 20;
  std::vector<float> values(piece);
  std::vector<bf16> narrow(piece);
  std::uint64_t done = 0;
  ProgressReport progress("writing random weights");
  for (const Parameter& p : layout.parameters()) {
    for (std::int64_t begin = 0; begin < p.size(); begin += piece) {
      const std::int64_t n = std::min(piece, p.size() - begin);
      pool.parallel_for(n, 1 << 14, [&](std::int64_t from, std::int64_t to) {
        const std::span<float> part(values.data() + from, static_cast<std::size_t>(to - from));
        initialize(spec, p, seed, begin + from, part);
        for (std::int64_t i = from; i < to; ++i)
          narrow[static_cast<std::size_t>(i)] = bf16(values[static_cast<std::size_t>(i)]);
      });
      const auto count = static_cast<std::size_t>(n);
      writer.write(p.name, static_cast<std::uint64_t>(begin) * size_of(dtype),
                   dtype == DType::f32 ? std::as_bytes(std::span(values).first(count))
                                       : std::as_bytes(std::span(narrow).first(count)));
      done += count * size_of(dtype);
      progress.update(static_cast<double>(done) / static_cast<double>(bytes), format_bytes(bytes));
    }
  }
  for (const TensorSpec& tensor : selection_bias_specs(spec))
    writer.write(tensor.name, 0, std::vector<std::byte>(static_cast<std::size_t>(tensor.bytes())));
  writer.finish();
}

int run(const InitOptions& options, const OptionOrigins&) {
  const NamedModel model = read_named_model(options.config, options.dtype);
  const ModelConfig& config = model.config;
  const DecoderSpec& spec = model.spec;
  if (!spec.wrapper.empty())
    fail(
        "{}: {} holds more than a text model, and init makes text models; give a config.json of {}, as its text_config is "
        "with \"architectures\" beside it",
        config.origin, spec.wrapper, spec.architecture);
  const DType dtype = model.dtype;
  const ParameterLayout layout(make_parameters(spec));
  const std::uint64_t bytes = static_cast<std::uint64_t>(layout.parameter_elements()) * size_of(dtype);

  if (options.tokenizer && auxiliary_files(*options.tokenizer).empty())
    fail("--tokenizer {}: there are no tokenizer files in that directory, as tokenizer.json", *options.tokenizer);
  const fs::path output = trimmed(options.output_dir);
  const FileNames replaced = require_replaceable(output, options);
  const bool into = path_exists(output);  // a directory, perhaps with what others have there
  const fs::path parent = output.parent_path().empty() ? fs::path(".") : output.parent_path();
  require_writable(into ? output : parent);
  require_free_space(output, bytes);
  std::optional<RunLock> lock;
  if (into) lock.emplace(output);
  if (into) remove_stale_temporaries_of_runs(output);
  AtomicDirectory directory(into ? output / init_directory : output);
  write_text_file_atomically(directory.path() / "config.json", config_with_dtype(config.text, dtype));
  if (options.tokenizer) copy_auxiliary_files(*options.tokenizer, directory.path());
  std::vector<TensorSpec> tensors = tensor_specs(layout, dtype);
  for (const TensorSpec& tensor : selection_bias_specs(spec)) tensors.push_back(tensor);
  HfModelWriter writer(directory.path(), tensors);
  write_random_weights(writer, spec, layout, dtype, static_cast<std::uint64_t>(options.seed));
  write_checksums(directory.path(), {{}, writer.checksums()});
  if (into) {
    // The new model is whole: now, and by name, what it replaces.
    if (!replaced.empty()) log_info("replacing in {}: {}", output.string(), describe(replaced));
    FileNames left = replaced;
    for (const std::string& name : files_in(directory.path())) left.erase(name);
    const OwnFiles own(output);
    own.add(replaced);
    put_model_into(directory.path(), output);
    own.remove(left);
  } else {
    OwnFiles(directory.path()).add(files_in(directory.path()));
    directory.commit();
  }
  log_info("wrote {}: {}, {:.4g} M random parameters, {}", output.string(), spec.architecture,
           static_cast<double>(layout.parameter_elements()) / 1e6, name_of(dtype));
  return exit_ok;
}

const RegisteredCommand init_command([] {
  return make_command<InitOptions>(
      {.name = "init",
       .position = 2,
       .summary = "make a randomly initialised model directory from a config",
       .details =
           R"(Writes a Hugging Face model directory with random weights: the start of training from nothing, or a
small model for trying things out.)",
       .examples = {"superoffload init --config config.json --tokenizer Qwen3-0.6B --output_dir tiny --seed 1"}},
      init_table(), nullptr, run);
});

}  // namespace
}  // namespace so
