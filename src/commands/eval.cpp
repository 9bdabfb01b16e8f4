#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "commands/command.h"
#include "commands/inference.h"
#include "commands/shared_rows.h"
#include "data/batches.h"
#include "data/dataset.h"
#include "data/model_encoder.h"
#include "io/temporary_cache.h"
#include "model/model_dtype.h"
#include "plan/disk_plan.h"

namespace so {
namespace {

struct EvalOptions : RowOptions, RecordOptions, JsonOption, ComputeOptions, MessageOptions {
  std::string model;
  std::string data;
};

OptionTable<EvalOptions> eval_table() {
  using namespace default_from;
  using O = EvalOptions;
  OptionTable<O> t;
  t.group("Model and data");
  t.add("model", &O::model, "Hugging Face model directory: config.json, tokenizer, safetensors")
      .metavar("DIR")
      .required()
      .elsewhere("model_name")
      .elsewhere("model_name_or_path");
  t.add("data", &O::data, "Records whose loss is measured").metavar("FILE").required().elsewhere("eval_data");
  t.borrow(row_rows(), train);
  t.row("batch_size").help = "Rows at a time";
  t.borrow(record_rows(), train);
  t.take(json_rows());
  add_machine_and_messages(t);
  return t;
}

int run(const EvalOptions& options, const OptionOrigins& origins) {
  const DecoderSpec spec = read_spec(options.model);
  const std::int64_t max_length =
      resolve_max_length(options.max_length, origins.given("max_length"), spec, options.model);
  const ModelFiles model(options.model);
  const ModelEncoder encoder(options.model, spec.vocab, special_tokens(options.parse_special_tokens));
  check_cpu_threads(options, static_cast<int>(usable_cpus().size()));
  Runtime runtime(options.device, options.cpu_threads.value_or(0));
  TemporaryCache temporary;  // for where there is no other place
  const std::string cache_dir = options.cache_dir.value_or("");
  DatasetSource source({options.data, {max_length, options.train_on_prompt}, cache_dir, temporary.if_needed(cache_dir)},
                       encoder, runtime.host_pool());
  require_cache_space(cache_needs({&source, 1}));
  const TokenDataset data = source.open();
  temporary.remove();  // what was opened is mapped

  const std::int64_t batch_tokens = std::max(data.counts().longest, options.batch_size * data.counts().longest);
  EvaluationIterator batches(data, batch_tokens);
  InferenceShape shape;
  shape.batch_tokens = batches.max_batch_tokens();
  shape.positions = data.counts().longest;
  const std::string config_file = (std::filesystem::path(options.model) / "config.json").string();
  const DType dtype = model_dtype(asked_dtype(options.dtype), model.directory().config_json(), config_file);
  Inference inference(model, runtime, model_formats(dtype), shape);
  ModelOnDevice& on_device = inference.model();

  double loss = 0;
  std::int64_t trained = 0, tokens = 0;
  ProgressReport progress("evaluating");
  MicroBatch batch;
  while (batches.next(batch)) {
    const DeviceBatch views = on_device.upload().upload(inference.stream(), batch);
    on_device.decoder().forward_loss(inference.stream(), views, inference.weights(), on_device.arena(),
                                     on_device.upload().losses());
    loss += on_device.upload().sum_losses(inference.stream());
    trained += batch.trained_tokens;
    tokens += batch.tokens;
    progress.update(static_cast<double>(tokens) / static_cast<double>(data.counts().tokens),
                    fmt::format("loss {:.4f}", loss / static_cast<double>(trained)));
  }
  loss /= static_cast<double>(trained);
  if (options.json) {
    nlohmann::ordered_json result{{"loss", loss},
                                  {"perplexity", std::exp(loss)},
                                  {"trained_tokens", trained},
                                  {"tokens", tokens},
                                  {"documents", data.size()}};
    fmt::print("{}\n", result.dump());
  } else {
    fmt::print("loss {:.6f}, perplexity {:.4f}, over {} tokens of {} documents\n", loss, std::exp(loss), trained,
               data.size());
  }
  if (std::isfinite(loss)) return exit_ok;
  log_error("{}: the loss is not finite", options.model);
  return exit_failure;
}

const RegisteredCommand eval_command([] {
  return make_command<EvalOptions>(
      {.name = "eval",
       .position = 3,
       .summary = "measure the loss of a model on records",
       .details =
           "Prints the mean loss per trained token and the perplexity of a model on records of the kinds that train takes.",
       .examples = {"superoffload eval --model out --data held-out.jsonl",
                    "superoffload eval --model out --data held-out.jsonl --json"},
       .absent = {{"packing", "records are evaluated end to end, and no row is filled up"}}},
      eval_table(), nullptr, run);
});

}  // namespace
}  // namespace so
