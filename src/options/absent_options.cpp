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
    "conversations are rendered with the model's chat template, or with that of chat_template: a file, chatml or alpaca";
constexpr std::string_view recorded =
    "metrics.jsonl and TensorBoard's events are always written; docs/metrics.md says how to send them to W&B and MLflow";

constexpr std::string_view two_metrics =
    "evaluations report the loss and the perplexity; superoffload generate writes "
    "the texts that other metrics are computed from";
constexpr std::string_view of_pytorch = "the program runs without PyTorch and Python, whose setting this is";
constexpr std::string_view of_trainer =
    "superoffload.AdamW is an optimizer for a Trainer, which has it (docs/pytorch.md)";
constexpr std::string_view ranks_share =
    "ranks divide optimizer state, gradients and, where they must, weights, as ZeRO does; "
    "gpus says how many there are";
constexpr std::string_view two_formats = "numbers are bf16 or fp32; dtype says which";
constexpr std::string_view local_files = "data names files and directories; docs/data.md lists their kinds";
constexpr std::string_view known_by_keys = "a record's kind is known by its keys; docs/data.md lists them";
constexpr std::string_view no_padding = "documents lie end to end without padding, and attention stays within each";

}  // namespace

void add_absent_options(OptionRows& rows) {
  const Reason reasons[] = {
      {{"peft_config", "use_peft", "adapter", "finetuning_type", "lora_r", "lora_alpha", "lora_dropout", "lora_rank",
        "lora_target", "lora_target_modules", "lora_target_linear", "lora_target_parameters", "lora_modules_to_save",
        "lora_task_type", "use_rslora", "use_dora"},
       adapters},
      {{"load_in_4bit", "load_in_8bit", "quantization_bit", "quantization_config", "bnb_4bit_quant_type",
        "bnb_4bit_quant_storage", "use_bnb_nested_quant"},
       "weights are trained in bf16 or fp32 (dtype), and need not fit the GPU"},
      {{"template"}, templates},
      {{"roles_to_train"},
       "the assistant's turns are trained; train_on_prompt trains everything, mask_history the last"},
      {{"assistant_only_loss", "completion_only_loss"},
       "responses alone are trained on; the opposite is train_on_prompt, which trains everything"},
      {{"unfrozen_parameters", "freeze_trainable_layers"},
       "everything is trained; the opposite is freeze, which names what is not trained"},
      {{"report_to", "wandb_project", "use_wandb", "run_name", "project", "trackio_space_id", "trackio_bucket_id",
        "trackio_static_space_id", "skip_memory_metrics", "include_num_input_tokens_seen", "debug", "logging_dir"},
       recorded},
      {{"logging_strategy", "logging_first_step", "log_on_each_node", "logging_nan_inf_filter"},
       "metrics.jsonl has every step; log_interval says how many steps apart they are printed"},
      {{"log_level", "log_level_replica", "disable_tqdm"}, "quiet leaves out what is not a warning; verbose says more"},
      {{"push_to_hub", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy", "hub_always_push",
        "hub_revision"},
       "nothing is uploaded; when the run has ended, hf upload REPO DIR uploads the model"},
      {{"use_liger_kernel", "liger_kernel_config"},
       "the program's own kernels are fused, and the loss never holds all logits"},
      {{"neftune_noise_alpha"}, "embeddings get no noise"},
      {{"compute_metrics", "preprocess_logits_for_metrics", "include_for_metrics", "batch_eval_metrics",
        "prediction_loss_only", "label_names"},
       two_metrics},
      {{"loss_type", "compute_loss_func"}, "the loss is cross-entropy; label_smoothing_factor smooths it"},
      {{"per_device_eval_batch_size", "eval_accumulation_steps", "eval_packing", "eval_do_concat_batches",
        "eval_use_gather_object"},
       "records are evaluated in rows like those they are trained in"},
      {{"eval_on_start", "eval_delay"}, "the first evaluation comes before the first step"},
      {{"torch_compile", "torch_compile_backend", "torch_compile_mode", "torch_empty_cache_steps", "use_cache", "tf32",
        "ignore_bias_buffers"},
       of_pytorch},
      {{"callbacks", "data_collator", "model_init", "formatting_func", "optimizers", "optimizer_cls_and_kwargs",
        "processing_class", "tokenizer"},
       of_trainer},
      {{"ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph", "ddp_backend",
        "ddp_timeout", "fsdp", "fsdp_config", "accelerator_config", "parallelism_config", "local_rank"},
       ranks_share},
      {{"average_tokens_across_devices"}, "the loss of a step is the mean over the tokens of all ranks"},
      {{"gradient_checkpointing_kwargs", "activation_checkpointing_kwargs", "activation_offloading"},
       "what is kept for backward, and where, is planned by memory; activation_checkpointing sets its limit"},
      {{"save_on_each_node"}, "all ranks write one checkpoint together"},
      {{"save_safetensors"}, "weights are always written as safetensors"},
      {{"enable_jit_checkpoint"}, "a signal always saves a checkpoint"},
      {{"ignore_data_skip", "restore_callback_states_from_checkpoint"},
       "a resumed run goes on where it was stopped, bit for bit"},
      {{"auto_find_batch_size"}, "what does not fit is refused before the run, with a batch_size that does"},
      {{"group_by_length", "length_column_name", "train_sampling_strategy"},
       "records come in a random order, or without shuffle in that of the files; packing fills rows with them"},
      {{"packing_strategy"}, "packing fills rows with whole records"},
      {{"padding_free", "pad_to_multiple_of", "pad_token"}, no_padding},
      {{"eos_token"}, "the tokens that end a text are those of the model's directory"},
      {{"truncation_mode"}, "a record that is longer than max_length loses its end"},
      {{"remove_unused_columns", "dataset_text_field", "dataset_kwargs"}, known_by_keys},
      {{"dataset_config", "dataset_train_split", "dataset_test_split", "dataset_streaming", "streaming"}, local_files},
      {{"router_aux_loss_coef"}, "config.json of the model says it"},
      {{"model_init_kwargs", "trust_remote_code", "model_revision"},
       "a model is a directory, and no code of it runs; config.json says what it is"},
      {{"disable_gradient_checkpointing"},
       "activations are recomputed where there is no room for them; activation_checkpointing decides otherwise"},
      {{"attn_implementation", "flash_attention", "flash_attn"}, "the program has one attention for each device"},
      {{"fp16", "fp16_full_eval", "bf16_full_eval"}, two_formats},
      {{"bf16"}, "dtype says it, and is bf16 where the model is"},
      {{"mixed_precision"},
       "dtype says it, and is bf16 where the model is; what fp8 means there is fp8 here: true or false"},
      {{"fp8_backend", "fp8_config", "fp8_format", "fp8_recipe", "fp8_enable_fsdp_float8_all_gather"},
       "fp8 is E4M3 with a scale for each block, by its values at that moment; there is no other recipe"},
      {{"optim", "optimizer", "optim_args", "optim_target_modules"}, "the optimizer is AdamW"},
      {{"bench_steps"}, "superoffload bench step measures steps, and saves nothing"},
      {{"warmup_steps"},
       "warmup_num_steps, or warmup as a share of the run, is the learning rate's; bench step has its own warm-up"},
      {{"do_train", "do_eval", "do_predict", "stage"},
       "the command says what is done: superoffload train, superoffload eval"},
      {{"dataloader_drop_last"}, "the last step of an epoch has the records that are left"},
      {{"dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers",
        "dataloader_prefetch_factor", "dataloader_multiprocessing_context", "dataloader_in_order", "dataset_num_proc",
        "preprocessing_num_workers"},
       "records are tokenised on all threads that cpu_threads allows, and kept in a token cache"},
  };
  for (const Reason& reason : reasons)
    for (const std::string_view name : reason.names) rows.lacks(std::string(name), std::string(reason.why));
  rows.lacks("late_embedding", "the optimizer state of an embedding is placed and updated as that of every layer is",
             {"auto", "false"});
}

}  // namespace so
