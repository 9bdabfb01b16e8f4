#include "options/absent_options.h"

#include <initializer_list>
#include <string_view>

namespace so {
namespace {

struct Reason {
  std::initializer_list<std::string_view> names;
  std::string_view why;
};

constexpr std::string_view adapters = "all parameters are trained, without adapters; freeze leaves some of them out";
constexpr std::string_view templates =
    "conversations are rendered with the chat_template.jinja of the model's directory; put another one there";
constexpr std::string_view recorded =
    "metrics.jsonl and TensorBoard's events are always written; docs/metrics.md says how to send them to W&B and MLflow";

}  // namespace

void add_absent_options(OptionRows& rows) {
  const Reason reasons[] = {
      {{"peft_config", "use_peft", "adapter", "finetuning_type", "lora_r", "lora_alpha", "lora_dropout", "lora_rank",
        "lora_target", "lora_target_modules", "lora_target_linear"},
       adapters},
      {{"load_in_4bit", "load_in_8bit", "quantization_bit"},
       "weights are trained in bf16 or fp32 (dtype), and need not fit the GPU"},
      {{"chat_template", "chat_template_path", "template"}, templates},
      {{"roles_to_train"},
       "the assistant's turns are trained; train_on_prompt trains everything, mask_history the last"},
      {{"assistant_only_loss", "completion_only_loss"},
       "responses alone are trained on; the opposite is train_on_prompt, which trains everything"},
      {{"unfrozen_parameters", "freeze_trainable_layers"},
       "everything is trained; the opposite is freeze, which names what is not trained"},
      {{"report_to", "wandb_project", "use_wandb", "run_name"}, recorded},
      {{"disable_gradient_checkpointing"},
       "activations are recomputed where there is no room for them; activation_checkpointing decides otherwise"},
      {{"attn_implementation", "flash_attention", "flash_attn"}, "the program has one attention for each device"},
      {{"fp16"}, "numbers are bf16 or fp32; dtype says which"},
      {{"bf16"}, "dtype says it, and is bf16 where the model is"},
      {{"optim", "optimizer"}, "the optimizer is AdamW"},
      {{"do_train", "do_eval", "stage"}, "the command says what is done: superoffload train, superoffload eval"},
      {{"dataloader_num_workers", "dataset_num_proc", "preprocessing_num_workers"},
       "records are tokenised on all threads that cpu_threads allows, and kept in a token cache"},
  };
  for (const Reason& reason : reasons)
    for (const std::string_view name : reason.names) rows.lacks(std::string(name), std::string(reason.why));
}

}  // namespace so
