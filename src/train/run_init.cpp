#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "base/units.h"
#include "io/atomic_directory.h"
#include "io/checkpoint_directory.h"
#include "io/checksums.h"
#include "io/hf_directory.h"
#include "model/config.h"
#include "model/flops.h"
#include "model/initialize.h"
#include "model/parameters.h"
#include "model/presets.h"
#include "train/commands.h"
#include "train/export.h"
#include "train/runtime.h"

namespace so {

int run_init(const InitOptions& options) {
  namespace fs = std::filesystem;
  const ModelConfig config = resolve_config(options.config);
  const DecoderSpec spec = read_decoder_spec(config.text, config.origin);
  const DType dtype = resolve_dtype(options.dtype, config.text, config.origin);
  const ParameterLayout layout(make_parameters(spec));
  const std::uint64_t bytes = static_cast<std::uint64_t>(layout.parameter_elements()) * size_of(dtype);

  const fs::path output = options.output_dir;
  if (fs::exists(output) && !fs::is_empty(output) && !options.overwrite_output_dir)
    fail("{} is not empty; choose another --output_dir, or replace it with --overwrite_output_dir", output.string());
  require_writable(output.parent_path().empty() ? fs::path(".") : output.parent_path());
  require_free_space(output, bytes);
  if (fs::exists(output) && fs::is_empty(output)) fs::remove(output);  // an empty directory stands in nobody's way
  AtomicDirectory directory(output, options.overwrite_output_dir ? IfExists::replace : IfExists::refuse);
  write_text_file_atomically(directory.path() / "config.json", config_with_dtype(config.text, dtype));
  if (!options.tokenizer.empty()) copy_auxiliary_files(options.tokenizer, directory.path());
  HfModelWriter writer(directory.path(), tensor_specs(layout, dtype));

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
        initialize(spec, p, static_cast<std::uint64_t>(options.seed), begin + from, part);
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
  writer.finish();
  write_checksums(directory.path(), {{}, writer.checksums()});
  directory.commit();
  log_info("wrote {}: {}, {:.4g} M random parameters, {}", output.string(), spec.architecture,
           static_cast<double>(layout.parameter_elements()) / 1e6, name_of(dtype));
  return exit_ok;
}

}  // namespace so
