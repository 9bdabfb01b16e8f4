// superoffload bench ops.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/cpus.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "base/quantities.h"
#include "base/result_line.h"
#include "checkpoint/named_model.h"
#include "commands/bench/bench_ops_cases.h"
#include "commands/command.h"
#include "commands/shared_rows.h"
#include "device/arena.h"
#include "model/fp8_layers.h"
#include "ops/runtime.h"
#include "optim/device_adamw.h"
#include "optim/engine_ops.h"
#include "plan/machine/measure.h"

namespace so {
namespace {

struct BenchOpsOptions : JsonOption, ComputeOptions, MessageOptions {
  std::string config = "qwen3-14b";
  std::optional<std::int64_t> tokens;  // unset: the device's usual number
  std::int64_t max_length = 4096;
  bool fp8 = false;
};

OptionTable<BenchOpsOptions> bench_ops_table() {
  using namespace default_from;
  using O = BenchOpsOptions;
  OptionTable<O> t;
  t.group("Shapes");
  add_config_row(t, &O::config).default_from(ours);
  t.add("tokens", &O::tokens, "Tokens of a micro-batch")
      .unit("tokens")
      .at_least(1)
      .at_most(1e9)
      .or_else(std::int64_t{0}, "16384 on a GPU, 256 on the CPU")
      .default_from(ours);
  t.add("max_length", &O::max_length, "Longest document, for attention").unit("tokens").at_least(1).default_from(ours);
  t.add("fp8", &O::fp8, "Time the products in FP8, too, and the rounding of their operands")
      .bare("true")
      .default_from(ours);
  t.group("Result");
  t.take(json_rows());
  add_machine_and_messages(t);
  return t;
}

// Bytes of a case's tensors.
std::size_t size_of_case(const Case& c, Device& dry) {
  Arena arena(dry, MemoryKind::device, "sizes", 0);
  Tensors tensors(arena);
  c.make(tensors);
  return arena.high_water();
}

// Sets of tensors that calls go round, so that no cache holds what the next call reads.
std::int64_t sets_of(std::size_t bytes, const Backend& backend) {
  return std::clamp<std::int64_t>(
      static_cast<std::int64_t>(backend.probe.beyond_caches / std::max<std::size_t>(bytes, 1)) + 1, 1, 16);
}

double time_case(const Case& c, Device& device, Ops& ops, Stream& stream, std::size_t bytes) {
  const std::int64_t sets = sets_of(bytes, backend_of(device));
  Arena arena(device, MemoryKind::device, "operands", bytes * static_cast<std::size_t>(sets));
  std::vector<Call> calls;
  for (std::int64_t i = 0; i < sets; ++i) {
    Tensors tensors(arena);
    calls.push_back(c.make(tensors));
    tensors.fill(ops, stream);
    if (calls.back().prepare) calls.back().prepare(ops, stream);
  }
  const double seconds =
      seconds_per_call(stream, [&](std::int64_t i) { calls[static_cast<std::size_t>(i % sets)].run(ops, stream); });
  stream.synchronize();
  return seconds;
}

int run(const BenchOpsOptions& options, const OptionOrigins&) {
  const NamedModel model = read_named_model(options.config, options.dtype);
  const ModelConfig& config = model.config;
  DecoderSpec spec = model.spec;
  if (options.fp8) use_fp8(spec, 0, 0, config.origin);
  check_cpu_threads(options, static_cast<int>(usable_cpus().size()));
  Runtime runtime(options.device, options.cpu_threads.value_or(0));
  Device& device = runtime.device();
  const Backend& backend = backend_of(device);
  if (options.fp8 && !runtime.ops().multiplies_fp8()) fail("--fp8: this GPU has no products in FP8; leave it out");
  const std::int64_t tokens = options.tokens.value_or(backend.probe.tokens);
  const std::int64_t longest = std::min({options.max_length, tokens, spec.max_positions});

  const auto engine_ops = make_engine_ops(device);
  const auto adamw = make_device_adamw(device);
  const auto cases = make_cases(spec, tokens, longest, model.dtype, backend, runtime.ops(), *engine_ops, *adamw);
  const auto dry = make_dry_device(backend);
  std::vector<std::size_t> sizes;
  std::size_t most = 0;
  for (const Case& c : cases->all()) {
    sizes.push_back(size_of_case(c, *dry));
    most = std::max(most, sizes.back() * static_cast<std::size_t>(sets_of(sizes.back(), backend)));
  }
  const auto own = device.own_memory();
  const std::size_t room = own ? own->free : available_host_memory().available;
  if (most > room)
    fail("not enough memory: one operation takes {}, {} available; use fewer --tokens or a smaller --config",
         format_bytes(most), format_bytes(room));

  const auto stream = device.create_stream("compute");
  const double gemm_rate = measure_gemm_rate(device, runtime.ops(), *stream, model.dtype);
  const double bandwidth = measure_copy_bandwidth(device, *stream);
  log_info("{}, {} on {}, {} tokens in documents of {}; large matrix product {:.4g} TFLOP/s, copy {:.4g} GB/s",
           config.origin, name_of(model.dtype), device.name(), tokens, longest, gemm_rate / 1e12, bandwidth / 1e9);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  if (!options.json)
    print_text("{:<34} {:<44} {:>11} {:>11} {:>7}  {}\n", "operation", "sizes", "time us", "floor us", "share", "rate");
  for (std::size_t i = 0; i < cases->all().size(); ++i) {
    const Case& c = cases->all()[i];
    const double seconds = time_case(c, device, runtime.ops(), *stream, sizes[i]);
    const bool by_bytes = c.bytes > 0;
    const double floor = by_bytes ? c.bytes / bandwidth : c.flops / gemm_rate;
    if (options.json) {
      nlohmann::ordered_json row{{"op", c.name},
                                 {"sizes", c.shape},
                                 {"seconds", seconds},
                                 {"floor_seconds", floor},
                                 {"share", floor / seconds}};
      row[by_bytes ? "bytes" : "flops"] = by_bytes ? c.bytes : c.flops;
      rows.push_back(std::move(row));
    } else {
      print_text("{:<34} {:<44} {:>11.1f} {:>11.1f} {:>6.1f}%  {}\n", c.name, c.shape, 1e6 * seconds, 1e6 * floor,
                 100 * floor / seconds,
                 by_bytes ? fmt::format("{:.4g} GB/s", c.bytes / seconds / 1e9)
                          : fmt::format("{:.4g} TFLOP/s", c.flops / seconds / 1e12));
    }
  }
  if (options.json) {
    const nlohmann::ordered_json result{{"config", config.origin},
                                        {"device", device.name()},
                                        {"dtype", name_of(model.dtype)},
                                        {"tokens", tokens},
                                        {"max_length", longest},
                                        {"gemm_tflops", gemm_rate / 1e12},
                                        {"copy_gb_per_s", bandwidth / 1e9},
                                        {"ops", std::move(rows)}};
    fmt::print("{}\n", result.dump());
  }
  return exit_ok;
}

const RegisteredCommand bench_ops_command([] {
  return make_command<BenchOpsOptions>(
      {.name = "bench ops",
       .position = 14,
       .summary = "time each operation of a model's layer against its floor",
       .details =
           R"(Runs each operation at the sizes of the model and prints its time, its floor, and the share of that
limit which it reaches. The floor is bytes over the bandwidth of a large copy, or FLOPs over the rate of
a large matrix product, both measured in the same process. Buffers go round, so that caches do not help.)",
       .examples = {"superoffload bench ops --config qwen3-14b",
                    "superoffload bench ops --config qwen3-0.6b --tokens 2048 --json"}},
      bench_ops_table(), nullptr, run);
});

}  // namespace
}  // namespace so
