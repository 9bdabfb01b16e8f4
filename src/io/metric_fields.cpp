#include "io/metric_fields.h"

#include <fmt/format.h>

namespace so {
namespace {

constexpr MetricField field_table[] = {
    {"start", "step", "", "steps done before: 0, or that of the checkpoint resumed from"},
    {"start", "start.program", "", "the program's version"},
    {"start", "start.model", "", "`--model`; of a snapshot in a Hugging Face cache `ORG/NAME@COMMIT`"},
    {"start", "start.device", "", "where forward and backward run"},
    {"start", "start.ranks", "", "processes that share the run"},
    {"start", "start.total_steps", "", "steps of the whole run"},
    {"start", "start.time", "s", "since 1970"},
    {"start", "start.settings[].name", "", "an option; all are listed"},
    {"start", "start.settings[].value", "", "its value in effect, with the unit, as text"},
    {"start", "start.settings[].origin", "", "who gave it: default, file (DeepSpeed's), run file, command line"},
    {"start", "start.settings[].where", "",
     "file and key, or what it was derived from; absent if there is no more to say"},
    {"start", "start.settings[].overridden", "", "the value that lost, and where it stood; absent without a conflict"},
    {"start", "start.memory[].kind", "", "device, pinned (host memory that transfers reach) or pageable"},
    {"start", "start.memory[].name", "", "what the memory is for"},
    {"start", "start.memory[].planned", "bytes", "the most in any phase of the run"},
    {"start", "start.memory[].phases", "", "when it is held; absent if that is all the time"},
    {"start", "start.plan.step_seconds", "s", "the simulated step; `plan` is absent where no step was simulated"},
    {"start", "start.plan.overlap_efficiency", "", "as in a step's line, simulated"},
    {"start", "start.plan.device_seconds.NAME", "s", "the same"},
    {"start", "start.plan.host_seconds.NAME", "s", "the same"},
    {"step", "step", "", "the first step is 1"},
    {"step", "epoch", "", "passes over the data, with the fraction of the current one", "train/epoch"},
    {"step", "loss", "nats a token",
     "mean over the step's tokens that are trained on; with the routers' load-balancing loss, if config.json asks for it",
     "train/loss"},
    {"step", "grad_norm", "", "of all gradients, before clipping; null if it is not finite", "train/grad_norm"},
    {"step", "clip", "",
     "what the gradients were multiplied by: below 1 if the step was clipped; null if it was skipped", "train/clip"},
    {"step", "lr", "", "the learning rate of this step, before lr_multiplier", "train/learning_rate"},
    {"step", "tokens", "tokens", "in this step, without padding, over all ranks"},
    {"step", "step_time_s", "s", "wall time", "train/step_time_s"},
    {"step", "tokens_per_s", "tokens/s", "tokens / step_time_s", "train/tokens_per_s"},
    {"step", "model_tflops", "TFLOP/s", "of the model, without recomputation, each GPU", "train/model_tflops"},
    {"step", "reference_tflops", "TFLOP/s", "as the published system counts them", "train/reference_tflops"},
    {"step", "host_memory_bytes", "bytes", "resident of this process now", "train/host_memory_bytes"},
    {"step", "device_memory_bytes", "bytes", "that the run holds of the device's own memory; 0 on the CPU",
     "train/device_memory_bytes"},
    {"step", "overlap_efficiency", "", "the longer of the device's work and AdamW on the host, as a share of the step",
     "overlap/efficiency"},
    {"step", "device_seconds.NAME", "s", "where the device's time went ([names](running.md#overlap-efficiency))",
     "overlap/device_NAME_s"},
    {"step", "host_seconds.NAME", "s",
     "where the time of AdamW's thread on the host went; empty if it had nothing to do", "overlap/host_NAME_s"},
    {"step", "skipped", "", "true if a gradient was Inf or NaN: no weight changed; else absent, like the next two",
     "train/skipped"},
    {"step", "skipped_tensor", "", "the first tensor with such a gradient, in the order of backward"},
    {"step", "skipped_origin", "", "where it began: the gradients, the loss, or the first such activation"},
    {"evaluation", "step", "", "steps done before; 0: the evaluation at the start"},
    {"evaluation", "eval_loss", "nats a token",
     "mean over the evaluation data's tokens that are trained on; never with the routers' load-balancing loss, so that exp "
     "of it is the perplexity",
     "eval/loss"},
    {"samples", "step", "", "steps done before; 0: the samples at the start"},
    {"samples", "samples", "", "texts that were generated, one for each of `--sample_prompts`"},
    {"samples", "sample_tokens", "tokens", "generated, in all of them"},
    {"samples", "sample_seconds", "s", "wall time"},
    {"end", "step", "", "the last step"},
    {"end", "summary.FIGURE.planned", "s, bytes",
     "FIGURE: step_seconds, overlap_efficiency, device_seconds, host_adamw_seconds, device_bytes, pinned_bytes, "
     "host_bytes; those that were planned or measured"},
    {"end", "summary.FIGURE.measured", "s, bytes", "times: means over `run.measured_steps`; memory: the most at once"},
    {"end", "summary.FIGURE.difference", "", "measured / planned - 1; null if nothing was planned", "plan/FIGURE"},
    {"end", "run.steps", "", "of this run, not of those it was resumed from; `run` is absent if there were none"},
    {"end", "run.first_step", "", ""},
    {"end", "run.last_step", "", ""},
    {"end", "run.tokens", "tokens", "of all its steps"},
    {"end", "run.seconds", "s", "from the first step to the end, evaluations and checkpoints included"},
    {"end", "run.measured_steps", "",
     "the steps that all times and rates at the run's end are means of: without the first, and without those that took "
     "more than half as long again as the median, in seconds and for each FLOP, as steps that load kernels do; of a "
     "long run the last 10,000"},
    {"end", "run.tokens_per_s", "tokens/s", "of the measured steps"},
    {"end", "run.first_loss", "nats a token", "of the first step"},
    {"end", "run.last_loss", "nats a token", "of the last step"},
    {"end", "run.clipped_steps", "", "steps whose gradients were scaled down"},
    {"end", "run.skipped_steps", "", "steps with a gradient that was Inf or NaN"},
    {"end", "run.outcome", "", "finished, interrupted (by a signal) or diverged"},
    {"end", "run.overlap_efficiency", "", "of the measured steps, like the next two; absent without any"},
    {"end", "run.device_seconds.NAME", "s", "the mean of a step"},
    {"end", "run.host_seconds.NAME", "s", "the mean of a step"},
    {"end", "run.best_evaluation.step", "", "of the least loss; absent without an evaluation"},
    {"end", "run.best_evaluation.eval_loss", "nats a token", ""},
    {"end", "run.last_evaluation.step", "", ""},
    {"end", "run.last_evaluation.eval_loss", "nats a token", ""},
    {"end", "memory[].kind", "", "as in the start's line, like the next three"},
    {"end", "memory[].name", "", ""},
    {"end", "memory[].planned", "bytes", ""},
    {"end", "memory[].phases", "", ""},
    {"end", "memory[].measured", "bytes", "the most that was held at once; null where it is not counted by name"},
};

std::string_view heading(std::string_view line) {
  if (line == "start") return "A run's start, and each resumption: a line with `start`";
  if (line == "step") return "A step: a line with `loss`";
  if (line == "evaluation") return "An evaluation: a line with `eval_loss`";
  if (line == "samples") return "Samples: a line with `samples`, whose texts are in `samples.jsonl`";
  return "A run's end: a line with `summary`";
}

}  // namespace

std::span<const MetricField> metric_fields() { return field_table; }

std::string metric_fields_markdown() {
  std::string text;
  std::string_view line;
  for (const MetricField& f : field_table) {
    if (f.line != line)
      text += fmt::format("{}## {}\n\n| field | unit | meaning | TensorBoard |\n|---|---|---|---|\n",
                          line.empty() ? "" : "\n", heading(f.line));
    line = f.line;
    text += fmt::format("| `{}` | {} | {} | {} |\n", f.name, f.unit, f.meaning,
                        f.tensorboard.empty() ? "" : fmt::format("`{}`", f.tensorboard));
  }
  return text;
}

}  // namespace so
