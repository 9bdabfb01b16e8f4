#include "cli/parse.h"
#include "train/deepspeed_config.h"

namespace so {
namespace {

ParsedCommand finish(const std::vector<std::pair<std::string, std::string>>& values, int ranks) {
  TrainOptions options;
  OptionOrigins origins;
  assign_values(train_option_table().ref(options), origins, values);
  if (!options.deepspeed_config.empty()) apply_deepspeed_config(options.deepspeed_config, ranks, options, origins);
  check_train_options(options, origins);
  return {std::move(options), std::move(origins)};
}

}  // namespace

const Command& train_command() {
  static const Command command{
      "train",
      "fine-tune all parameters of a model",
      "Fine-tunes all parameters of a Hugging Face model directory on records in Alpaca, plain-text or tokenised form "
      "and\n"
      "writes a Hugging Face model directory. Optimizer state (fp32 weights and both Adam moments) lives in host\n"
      "memory, where the CPU updates it, and, as far as that is faster and fits, in GPU memory, updated by the GPU;\n"
      "run.log says the split and why. --offload_ratio or --offload_optimizer none ask for another one.\n\n"
      "--mode superoffload (\"super_offload\": true in a DeepSpeed file) runs AdamW on the CPU while the GPU "
      "computes,\n"
      "zerooffload after backward. Results are the same.\n\n"
      "--dry_run says what a run would do and need, or why it cannot run, and trains nothing.",
      {"superoffload train --model Qwen3-0.6B --data alpaca.json --output_dir out",
       "superoffload train --model Qwen3-0.6B --data alpaca.json --output_dir out --resume",
       "superoffload train --model Qwen3-14B --data alpaca.json --output_dir out --deepspeed_config ds_config.json \\",
       "    --max_length 4096 --lr 1e-5 --activation_checkpointing",
       "superoffload train --model Qwen3-14B --data alpaca.json --output_dir bench --warmup_steps 5 --bench_steps 20"},
      &train_option_table(),
      finish};
  return command;
}

}  // namespace so
