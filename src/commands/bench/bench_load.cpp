// superoffload bench load.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/cpus.h"
#include "base/file.h"
#include "base/log.h"
#include "base/quantities.h"
#include "base/result_line.h"
#include "checkpoint/directory_dtype.h"
#include "checkpoint/source_model.h"
#include "commands/command.h"
#include "commands/shared_rows.h"
#include "io/shard_reader.h"
#include "offload/memory/device_weights.h"
#include "ops/runtime.h"
#include "plan/machine/measure.h"
#include "plan/memory/memory_room.h"
#include "plan/training_plan.h"

namespace so {
namespace {

struct BenchLoadOptions : JsonOption, ComputeOptions, MessageOptions {
  std::string model;
  std::int64_t rounds = 5;
};

OptionTable<BenchLoadOptions> bench_load_table() {
  using namespace default_from;
  using O = BenchLoadOptions;
  OptionTable<O> t;
  t.group("Model");
  t.add("model", &O::model, "Hugging Face model directory: config.json, safetensors")
      .metavar("DIR")
      .required()
      .hub(HubUse::weights);
  t.group("Measurement");
  t.add("rounds", &O::rounds, "Measured rounds, of which the median counts")
      .unit("rounds")
      .at_least(1)
      .at_most(1e6)
      .default_from(ours);
  t.take(json_rows());
  add_machine_and_messages(t);
  return t;
}

double seconds_of(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Every byte of the model's tensors read into pinned memory, by the loader's threads in its pieces, and left at that.
void read_all(const ModelFiles& model, LoadingRing& ring, Stream& stream, int readers) {
  ShardReader reader(ring, model.files().requests([](DType) { return WeightForms{}; }), readers, PageCache::keep);
  while (reader.next()) reader.release(stream);
  stream.synchronize();
}

// As many bytes copied from the ring to the device, in pieces of its slots, without waiting in between.
void copy_all(LoadingRing& ring, Stream& stream, const DeviceWeights& weights, std::uint64_t bytes) {
  std::size_t turn = 0, to = 0;
  while (bytes > 0) {
    const std::size_t piece = std::min<std::uint64_t>({bytes, ring.slot_bytes(), weights.bytes()});
    if (to + piece > weights.bytes()) to = 0;
    stream.copy(weights.at(0) + to, ring.slot(turn++).memory.data(), piece);
    to += piece;
    bytes -= piece;
  }
  stream.synchronize();
}

int run(const BenchLoadOptions& options, const OptionOrigins&) {
  const ModelFiles model(options.model);
  const DType dtype = directory_dtype(asked_dtype(options.dtype), options.model);
  check_cpu_threads(options, static_cast<int>(usable_cpus().size()));
  Runtime runtime(options.device, options.cpu_threads.value_or(0));
  Device& device = runtime.device();
  {
    const auto dry = make_dry_device(backend_of(device));
    const DeviceWeights weights(*dry, model.layout(), dtype);
    // The loader's, and the one of the measurements beside it.
    const LoadingRing rings[] = {make_loading_ring(*dry, model.layout()), make_loading_ring(*dry, model.layout())};
    MemoryPlan plan;
    plan.add(dry->ledger());
    add_libraries(plan, backend_of(device), dtype, runtime.host_pool().size());
    const MemoryAdvice advice{"use a GPU with more memory", "use a machine with more memory"};
    if (const auto refusal = room_of(device).misfit(plan, advice)) throw *refusal;
  }
  LoadingRing ring = make_loading_ring(device, model.layout());
  DeviceWeights weights(device, model.layout(), dtype);
  const auto stream = device.create_stream("compute");
  const std::uint64_t bytes = model.files().bytes();

  const int readers = runtime.host_pool().size();
  // Not measured with the others: afterwards what fits in memory of the files is there, and device memory was touched.
  const double first = seconds_of([&] { read_all(model, ring, *stream, readers); });
  model.load(weights, *stream, runtime.host_pool());
  std::vector<double> read, copy, load;
  for (std::int64_t round = 0; round < options.rounds; ++round) {
    read.push_back(seconds_of([&] { read_all(model, ring, *stream, readers); }));
    copy.push_back(seconds_of([&] { copy_all(ring, *stream, weights, bytes); }));
    load.push_back(seconds_of([&] { model.load(weights, *stream, runtime.host_pool()); }));
  }
  const double read_s = median(read), copy_s = median(copy), load_s = median(load), gigabytes = 1e-9 * bytes,
               floor = std::max(read_s, copy_s);
  if (options.json) {
    const nlohmann::ordered_json result{{"model", options.model},
                                        {"device", device.name()},
                                        {"dtype", name_of(dtype)},
                                        {"bytes", bytes},
                                        {"rounds", options.rounds},
                                        {"first_read_seconds", first},
                                        {"read_seconds", read_s},
                                        {"copy_seconds", copy_s},
                                        {"load_seconds", load_s},
                                        {"load_gb_per_s", gigabytes / load_s},
                                        {"ratio_to_read_plus_copy", load_s / (read_s + copy_s)},
                                        {"share_of_limit", floor / load_s}};
    fmt::print("{}\n", result.dump());
    return exit_ok;
  }
  print_text("{} as {} on {}: {} in files, median of {} rounds\n", options.model, name_of(dtype), device.name(),
             format_bytes(bytes), options.rounds);
  const auto line = [&](const char* what, double seconds) {
    print_text("{:<28} {:>9.4f} s {:>8.4g} GB/s\n", what, seconds, gigabytes / seconds);
  };
  line("first read, as it was found", first);
  line("read", read_s);
  line("copy to the device", copy_s);
  line("load", load_s);
  print_text("load / (read + copy) {:.3f}; {:.1f}% of the slower of the two\n", load_s / (read_s + copy_s),
             100 * floor / load_s);
  return exit_ok;
}

const RegisteredCommand bench_load_command([] {
  return make_command<BenchLoadOptions>(
      {.name = "bench load",
       .position = 15,
       .summary = "time the loading of a model beside a plain read and copy",
       .details =
           R"(Loads the model's weights to the device as generate and eval do, and prints the time beside that of
reading the same bytes with the same threads, and of copying as many from pinned memory to the device.
The three take turns. Before that everything is read once, so what is measured comes from the page cache
as far as it fits there.)",
       .examples = {"superoffload bench load --model Qwen3-8B",
                    "superoffload bench load --model Qwen3-8B --rounds 9 --json"}},
      bench_load_table(), nullptr, run);
});

}  // namespace
}  // namespace so
