#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "base/log.h"
#include "base/result_line.h"
#include "checkpoint/directory_dtype.h"
#include "checkpoint/output_space.h"
#include "checkpoint/rank_files.h"
#include "commands/command.h"
#include "commands/inference/inference.h"
#include "commands/program/rank_work.h"
#include "commands/shared_rows.h"
#include "data/batches.h"
#include "data/data_files.h"
#include "data/dataset.h"
#include "data/document_mix.h"
#include "data/model_encoder.h"
#include "io/temporary_cache.h"
#include "options/chat_template_option.h"
#include "plan/machine/rank_share.h"
#include "ranks/together.h"
#include "train/evaluation.h"

namespace so {
namespace {

struct EvalOptions : HubOptions,
                     RowOptions,
                     RecordOptions,
                     ChatTemplateOption,
                     JsonOption,
                     ComputeOptions,
                     RankOptions,
                     MessageOptions {
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
      .hub(HubUse::weights)
      .elsewhere("model_name")
      .elsewhere("model_name_or_path");
  t.add("data", &O::data, "Records whose loss is measured; several files as train takes them")
      .metavar("FILE")
      .required()
      .hub(HubUse::data)
      .elsewhere("eval_data");
  t.take(hub_rows());
  t.borrow(row_rows(), train);
  t.row("batch_size").help = "Rows at a time, of each rank";
  t.borrow(chat_template_rows(), train);
  t.borrow(record_rows(), train);
  t.take(json_rows());
  add_machine_and_messages(t);
  t.lacks("packing", "records are evaluated end to end, and no row is filled up");
  return t;
}

void complete_eval(EvalOptions& options, OptionOrigins& origins, int launched) {
  complete_ranks(options, origins, launched);
  check_ranks(options);
}

// The tokens, and the facts about them in which ranks must agree.
JoinedDocuments open_records(const EvalOptions& options, std::int64_t max_length, const ModelEncoder& encoder,
                             Runtime& runtime, Communicator& ranks, const SequenceGroups& groups) {
  TemporaryCache temporary;  // for where there is no other place; what was opened is mapped
  const std::string cache_dir = options.cache_dir.value_or("");
  const DataPart files = all_files(data_files(options.data, "--data", DataUse::evaluation, Telling::log));
  std::vector<DatasetSource> sources;
  for (const std::filesystem::path& file : files)
    sources.emplace_back(DatasetOptions{file,
                                        {max_length, options.train_on_prompt, options.mask_history},
                                        cache_dir,
                                        temporary.if_needed(cache_dir)},
                         encoder, runtime.host_pool());
  require_cache_space(cache_needs(sources));
  JoinedDocuments data(open_by_ranks(ranks, sources, files));
  require_same_run(ranks, {{"the data and the tokenizer (a hash of both)", fmt::format("{:016x}", data.key())}});
  require_record_each(ranks, groups, data.size(), options.data);
  return data;
}

void print_loss(const EvaluationSums& sums, std::int64_t documents, bool json) {
  const double loss = sums.mean_loss();
  if (json) {
    const nlohmann::ordered_json result{{"loss", loss},
                                        {"perplexity", std::exp(loss)},
                                        {"trained_tokens", sums.trained_tokens},
                                        {"tokens", sums.tokens},
                                        {"documents", documents}};
    fmt::print("{}\n", result.dump());
  } else {
    print_text("loss {:.6f}, perplexity {:.4f}, over {} tokens of {} documents\n", loss, std::exp(loss),
               sums.trained_tokens, documents);
  }
}

int run_eval(const EvalOptions& options, const OptionOrigins& origins, Communicator& ranks) {
  const DecoderSpec spec = read_spec(options.model);
  const std::int64_t max_length =
      resolve_max_length(options.max_length, origins.given("max_length"), spec, options.model);
  const ModelFiles model(options.model);
  const ModelEncoder encoder(options.model, spec.vocab, special_tokens(options.parse_special_tokens),
                             options.chat_template);
  const RankSeat seat = take_seat(ranks, options.device, options);
  check_cpu_threads(options, seat.cpus);
  Runtime runtime(seat.device, rank_threads(ranks, seat, options.cpu_threads.value_or(0)), seat.gpu, seat.own_cpus);
  const SequenceGroups groups =
      sequence_groups(ranks, runtime.device(), options.sequence_parallel_size, seat.collectives, spec, options.model);
  RankFacts facts = option_facts(OptionsView(*find_command("eval")->rows, &options));
  facts.emplace_back("the parameters of the model", std::to_string(model.layout().elements()));
  require_same_run(ranks, facts);
  const JoinedDocuments data = open_records(options, max_length, encoder, runtime, ranks, groups);

  const std::int64_t batch_tokens = std::max(data.counts().longest, options.batch_size * data.counts().longest);
  EvaluationIterator batches(data, batch_tokens, groups.group, groups.groups, groups.place);
  InferenceShape shape;
  shape.batch_tokens = batches.max_batch_tokens();
  shape.positions = data.counts().longest;
  shape.sequence = groups.place.size;
  shape.collectives = seat.collectives;
  const DType dtype = directory_dtype(asked_dtype(options.dtype), options.model);
  MemoryRoom room = room_of(runtime.device());
  room.host = share_of_host(ranks);
  if (room.device) room.device->available /= static_cast<std::size_t>(seat.gpu_ranks);
  std::optional<Inference> inference;
  {
    const auto bytes = static_cast<std::uint64_t>(model.layout().elements()) * sizeof(float);  // at most
    const TimeLimitAtLeast limit(ranks, seconds_for_files(bytes));
    together(ranks,
             [&] { inference.emplace(model, runtime, model_formats(dtype), shape, room, groups.exchange.get()); });
  }
  const auto sums =
      evaluate(inference->model(), inference->weights(), inference->stream(), ranks, batches, data.counts().tokens);
  if (ranks.rank() == 0) print_loss(*sums, data.size(), options.json);
  if (std::isfinite(sums->mean_loss())) return exit_ok;
  log_error("{}: the loss is not finite", options.model);
  return exit_failure;
}

const RegisteredCommand eval_command([] {
  return make_rank_command<EvalOptions>(
      {.name = "eval",
       .position = 3,
       .summary = "measure the loss of a model on records",
       .details =
           "Prints the mean loss per trained token and the perplexity of a model on records of the kinds that train takes.",
       .examples = {"superoffload eval --model out --data held-out.jsonl",
                    "superoffload eval --model out --data held-out.jsonl --json",
                    "superoffload eval --model out --data held-out.jsonl --device cpu --gpus 4"},
       .modes = {{"train_on_prompt", "true", "all of each text counts", {"mask_history"}},
                 {"device", "cpu", "the memory of its ranks is the host's", {"collectives"}},
                 one_rank()}},
      eval_table(), complete_eval, run_eval);
});

}  // namespace
}  // namespace so
