// The DeepSpeed keys that set no option of ours: what each may say, and why. A key that does is in the row of
// its option (option_groups.cpp, step_option_groups.cpp, train_options.cpp), as .deepspeed("key").
#include <fmt/format.h>

#include <algorithm>

#include "options/deepspeed_config.h"

namespace so {
namespace {

using enum JsonKind;

struct Rows {
  std::vector<DeepSpeedKey> keys;

  void section(std::string path, std::string why = {}) {
    keys.push_back({std::move(path), KeyUse::section, object, {}, {}, std::move(why)});
  }
  void special(std::string path, JsonKind kind, std::string why) {
    keys.push_back({std::move(path), KeyUse::special, kind, {}, {}, std::move(why)});
  }
  void unused(std::string path, JsonKind kind, std::string why) {
    keys.push_back({std::move(path), KeyUse::unused, kind, {}, {}, std::move(why)});
  }
  void limited(std::string path, JsonKind kind, std::vector<std::string> accepted, std::string why) {
    keys.push_back({std::move(path), KeyUse::limited, kind, {}, std::move(accepted), std::move(why)});
  }
  void off(std::string path, std::string why) { limited(std::move(path), boolean, {"false"}, std::move(why)); }
};

void add_batch_and_run(Rows& r) {
  r.special("train_batch_size", integer,
            "must equal train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks / sequence_parallel_size; "
            "whichever is missing follows from the others");
  r.unused("dump_state", boolean, "the settings log shows every effective setting");
  r.unused("memory_breakdown", boolean, "memory is booked under names and shown at start");
  r.unused("log_level", text, "the log has one level of detail");
  r.off("dataloader_drop_last", "the last, smaller step of an epoch is always trained on; set it to false");
  r.limited("managed_gradient_accumulation", boolean, {"true"},
            "the program runs the accumulation itself; set it to true");
}

void add_optimizer(Rows& r) {
  r.section("optimizer");
  r.special("optimizer.type", text, "AdamW, or Adam, which DeepSpeed also runs as AdamW");
  r.section("optimizer.params");
  r.special("optimizer.params.betas", list, "two numbers: adam_beta1 and adam_beta2");
  r.limited("optimizer.params.adam_w_mode", boolean, {"true"},
            "only decoupled weight decay (AdamW) is implemented; set it to true");
  r.unused("optimizer.params.torch_adam", boolean, "there is one AdamW, with the same formula");
  r.unused("optimizer.params.fused", boolean, "there is one AdamW, and it is fused");
  r.unused("optimizer.params.fp32_optimizer_states", boolean,
           "moments would be as precise as the weights that the optimizer is given, and ZeRO gives it fp32 ones");
  r.off("optimizer.params.amsgrad", "AMSGrad is not implemented; set it to false");
  r.limited("optimizer.params.bias_correction", boolean, {"true"}, "AdamW always corrects the bias; set it to true");
  r.limited("optimizer.params.max_grad_norm", number, {"0"},
            "DeepSpeed ignores it here; move the value to gradient_clipping");
  r.off("optimizer.legacy_fusion", "there is no Lamb optimizer; set it to false");
  r.section("scheduler");
  r.section("scheduler.params");
  r.limited("scheduler.params.warmup_min_lr", number, {"0"}, "warm-up starts at 0; set it to 0");
  r.limited("scheduler.params.warmup_min_ratio", number, {"0"}, "warm-up starts at 0; set it to 0");
  r.limited("scheduler.params.warmup_type", text, {"\"linear\""},
            "only linear warm-up is implemented; set it to \"linear\"");
  r.limited("scheduler.params.cos_min_ratio", number, {"0"},
            "the cosine schedule ends at min_lr, 0 as in Hugging Face if it is not given; set it to 0");
  r.special("scheduler.params.total_num_steps", integer,
            "the schedule ends with the run: \"auto\", or equal to --max_steps");
  r.limited("scheduler.params.last_batch_iteration", integer, {"-1"},
            "a resumed run continues its schedule by itself; remove it");
}

void add_precision(Rows& r) {
  for (const std::string section : {"bf16", "bfloat16"}) {
    r.section(section);
    r.unused(section + ".immediate_grad_update", boolean, "when gradients are accumulated does not change their sum");
    r.unused(section + ".check_grad_overflow", boolean, "non-finite gradients are always checked for");
    r.off(section + ".bf16_master_weights_and_grads", "master weights are fp32; set it to false");
    r.off(section + ".bf16_optimizer_states", "here it is --optimizer_state_dtype bf16; set it to false");
  }
  r.section("fp16");
  r.off("fp16.enabled", "fp16 is not implemented, only bf16 and fp32; set it to false and bf16.enabled to true");
  const std::string scaling = "fp16.enabled is false, and bf16 needs no loss scaling";
  for (const char* key : {"loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale"})
    r.unused(std::string("fp16.") + key, number, scaling);
  for (const char* key : {"auto_cast", "consecutive_hysteresis", "fused_mode", "fp16_master_weights_and_grads"})
    r.unused(std::string("fp16.") + key, boolean, "fp16.enabled is false");
  r.section("amp");
  r.off("amp.enabled", "Apex mixed precision is not implemented; use bf16.enabled");
  r.unused("amp.opt_level", text, "amp.enabled is false");
  r.section("torch_autocast");
  r.off("torch_autocast.enabled", "there is no torch here; use bf16.enabled");
  r.unused("torch_autocast.dtype", text, "torch_autocast.enabled is false");
  r.unused("torch_autocast.lower_precision_safe_modules", list, "torch_autocast.enabled is false");
  r.section("data_types");
}

void add_zero(Rows& r) {
  const std::string z = "zero_optimization.";
  r.section("zero_optimization");
  r.special(
      z + "stage", integer,
      "a limit, 0 to 3: below 3 each of several ranks keeps all weights and gradients (gathered_layers 0), with 3 "
      "it may keep slices, where that fits better or is faster; optimizer state is always in slices");
  r.unused(z + "sub_group_size", integer, "the optimizer steps one bucket at a time; see reduce_bucket_size");
  // DeepSpeed takes a stage3 key without "stage3_" too.
  const auto unused_of_stage3 = [&](const std::string& key, JsonKind kind, const std::string& why) {
    r.unused(z + "stage3_" + key, kind, why);
    r.unused(z + key, kind, why);
  };
  const std::string layout = "how ranks exchange data is chosen by the program and does not change results";
  for (const char* key :
       {"overlap_comm", "contiguous_gradients", "reduce_scatter", "use_multi_rank_bucket_allreduce",
        "allgather_partitions", "round_robin_gradients", "legacy_stage1", "mics_hierarchical_params_gather"})
    r.unused(z + key, boolean, layout);
  for (const char* key : {"allgather_sequential", "use_all_reduce_for_fetch_params"})
    unused_of_stage3(key, boolean, layout);
  for (const char* key : {"allgather_bucket_size", "zero_hpz_partition_size", "mics_shard_size"})
    r.unused(z + key, integer, layout);
  const std::string residency = "which weights are on the GPU is planned from its memory and does not change results";
  for (const char* key :
       {"prefetch_bucket_size", "param_persistence_threshold", "model_persistence_threshold", "max_live_parameters",
        "max_reuse_distance", "module_granularity_threshold", "partition_stream_chunk_size"})
    unused_of_stage3(key, number, residency);
  const std::string saving = "saved models are always whole Hugging Face checkpoints";
  unused_of_stage3("gather_16bit_weights_on_model_save", boolean, saving);
  r.unused(z + "stage3_gather_fp16_weights_on_model_save", boolean, saving);
  r.unused(z + "elastic_checkpoint", boolean, "checkpoints are laid out by parameter, not by rank");
  r.unused(z + "load_from_fp32_weights", boolean, "master weights start from the checkpoint at its own precision");
  r.unused(z + "pipeline_loading_checkpoint", boolean, "weights are always loaded shard by shard");
  const std::string modules = "concerns PyTorch modules, of which there are none here";
  for (const char* key : {"ignore_unused_parameters", "memory_efficient_linear", "override_module_apply",
                          "log_trace_cache_warnings", "enable_sanity_checks"})
    r.unused(z + key, boolean, modules);
  r.unused(z + "leaf_module", any, modules);
  const std::string quantized = "quantised communication changes results and is not implemented; set it to false";
  for (const char* key : {"zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients"})
    r.off(z + key, quantized);
  r.limited(z + "zeropp_loco_param", any, {}, "quantised communication is not implemented; remove it");
  r.limited(z + "zenflow", any, {}, "ZenFlow changes the update rule and is not implemented; remove it");
  r.unused(z + "save_muon_momentum_buffer_in_memory", boolean, "there is no Muon optimizer");

  r.section(z + "offload_optimizer");
  const std::string nvme = "concerns offload to NVMe, and optimizer state is in memory";
  r.unused(z + "offload_optimizer.nvme_path", text, nvme);
  r.unused(z + "offload_optimizer.buffer_count", integer, nvme);
  for (const char* key : {"pipeline", "pipeline_read", "pipeline_write", "fast_init"})
    r.unused(z + "offload_optimizer." + key, boolean, nvme);
  r.unused(z + "offload_optimizer.convert_grad_on_cpu", boolean,
           "where gradients are widened follows from link and CPU speed and does not change results");

  r.section(z + "offload_param");
  const std::string param =
      "which layers' weights wait in host memory follows from the memory there is and does not change results; "
      "--streamed_layers sets it";
  r.limited(z + "offload_param.device", text, {"\"none\"", "\"cpu\""},
            "offload to NVMe is not implemented; set it to \"cpu\" (" + param + ")");
  r.unused(z + "cpu_offload_param", boolean, param);
  r.unused(z + "offload_param.nvme_path", text, "concerns offload to NVMe, and weights are in memory");
  const std::string places = "streamed weights go through two places on the device, each of a layer's size";
  for (const char* key : {"buffer_count", "buffer_size", "max_in_cpu"})
    r.unused(z + "offload_param." + key, number, places);
  r.unused(z + "offload_param.pin_memory", boolean, "host memory that weights stream from is always pinned");
  r.section("aio");
  for (const char* key : {"block_size", "queue_depth", "thread_count", "intra_op_parallelism"})
    r.unused(std::string("aio.") + key, integer, nvme);
  for (const char* key : {"single_submit", "overlap_events", "use_gds"})
    r.unused(std::string("aio.") + key, boolean, nvme);
}

void add_communication(Rows& r) {
  r.limited("communication_data_type", text, {"\"fp32\""}, "gradients are reduced in fp32; set it to \"fp32\"");
  r.limited("seq_parallel_comm_data_type", text, {"\"fp32\""}, "gradients are reduced in fp32; set it to \"fp32\"");
  r.off("prescale_gradients", "gradients are divided once, by the global number of trained tokens; set it to false");
  r.limited("gradient_predivide_factor", number, {"1"},
            "gradients are divided once, by the global number of trained tokens; set it to 1.0");
  r.off("sparse_gradients", "embedding gradients are dense; set it to false");
  r.unused("disable_allgather", boolean, "how ranks exchange data is chosen by the program");
  r.unused("use_data_before_expert_parallelism", boolean, "there is no expert parallelism");
  r.section("tensor_parallel");
  r.limited("tensor_parallel.autotp_size", integer, {"0", "1"}, "tensor parallelism is not implemented; set it to 0");
  r.unused("zero_allow_untested_optimizer", boolean, "the optimizer is the program's own");
  r.unused("zero_force_ds_cpu_optimizer", boolean, "the optimizer is the program's own");
}

void add_activation_checkpointing(Rows& r) {
  const std::string a = "activation_checkpointing.";
  r.section("activation_checkpointing", "whether activations are recomputed is --activation_checkpointing");
  r.unused(a + "partition_activations", boolean, "there is no model parallelism to partition them over");
  r.unused(a + "contiguous_memory_optimization", boolean, "activations always lie in one planned arena");
  r.unused(a + "number_checkpoints", integer, "the plan chooses how many layers keep their inputs");
  r.unused(a + "synchronize_checkpoint_boundary", boolean, "the order of work on the device does not change results");
  r.unused(a + "profile", boolean, "the step log shows the time of forward and backward");
  r.unused(a + "cpu_checkpointing", boolean, "the plan keeps inputs of layers in host memory where that is needed");
}

void add_features(Rows& r) {
  const auto feature = [&](const std::string& name, const std::string& why) {
    r.keys.push_back({name, KeyUse::feature, object, {}, {}, why + "; set its \"enabled\" to false or remove it"});
  };
  const std::string monitor = "metrics go to the log and to files in the output directory";
  for (const char* name : {"tensorboard", "wandb", "csv_monitor", "comet"}) feature(name, monitor);
  feature("flops_profiler", "the step log shows TFLOPS and superoffload bench step measures them");
  feature("comms_logger", "communication is not logged call by call");
  feature("autotuning", "settings are planned from the machine, not searched for");
  feature("elasticity", "the number of ranks is fixed during a run");
  feature("eigenvalue", "eigenvalue-based quantisation is not implemented");
  feature("progressive_layer_drop", "it changes the model and is not implemented");
  feature("curriculum_learning", "it changes the data order and is not implemented");
  feature("data_efficiency", "it changes the data order and is not implemented");
  feature("hybrid_engine", "it serves reinforcement learning, which is not implemented");
  feature("nebula", "checkpoints are written to the output directory");
  for (const char* name : {"compression_training", "quantize_training", "weight_quantization", "sparse_attention"})
    r.limited(name, any, {"{}"}, "it changes the model and is not implemented; remove it");
  r.limited("pipeline", any, {"{}", "false"}, "pipeline parallelism is not implemented; remove it");
  r.unused("graph_harvesting", boolean, "how kernels are launched does not change results");
  r.unused("compile", object, "there is no PyTorch graph to compile");
  r.unused("timers", object, "timers are always on");
  r.unused("vocabulary_size", integer, "the vocabulary is the model's");
  r.section("checkpoint", "checkpoints have this program's own layout");
  r.unused("checkpoint.tag_validation", text, "checkpoints are named by step");
  r.unused("checkpoint.load_universal", boolean,
           "checkpoints are laid out by parameter, so any rank count resumes them");
  r.unused("checkpoint.use_node_local_storage", boolean, "checkpoints are written to the output directory");
  r.unused("checkpoint.parallel_write", object, "every rank writes its own part");
}

// Returns the kind that the key's value has in JSON, which for these four is not the kind of the option.
JsonKind json_kind(std::string_view path, const OptionSpec& spec) {
  for (const std::string_view flag : {"bf16.enabled", "bfloat16.enabled", "zero_optimization.cpu_offload",
                                      "zero_optimization.offload_optimizer.super_offload"})
    if (path == flag) return boolean;
  switch (spec.kind) {
    case OptionKind::boolean:
      return boolean;
    case OptionKind::integer:
      return integer;
    case OptionKind::real:
      return number;
    case OptionKind::text:
    case OptionKind::choice:
      return text;
  }
  return any;
}

std::vector<DeepSpeedKey> make_keys() {
  Rows r;
  add_batch_and_run(r);
  add_optimizer(r);
  add_precision(r);
  add_zero(r);
  add_communication(r);
  add_activation_checkpointing(r);
  add_features(r);
  for (const OptionSpec& spec : train_option_table().specs())
    for (const std::string& key : spec.deepspeed_keys)
      r.keys.push_back({key, KeyUse::option, json_kind(key, spec), spec.name, {}, {}});
  std::sort(r.keys.begin(), r.keys.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  const auto twice =
      std::adjacent_find(r.keys.begin(), r.keys.end(), [](const auto& a, const auto& b) { return a.path == b.path; });
  SO_CHECK(twice == r.keys.end(), "DeepSpeed key {} declared twice", twice->path);
  return std::move(r.keys);
}

}  // namespace

std::span<const DeepSpeedKey> deepspeed_keys() {
  static const std::vector<DeepSpeedKey> keys = make_keys();
  return keys;
}

std::string deepspeed_keys_markdown() {
  std::string text = "| key | here | |\n|---|---|---|\n";
  for (const DeepSpeedKey& key : deepspeed_keys()) {
    switch (key.use) {
      case KeyUse::option:
        text +=
            fmt::format("| `{}` | sets `{}` | {} |\n", key.path, key.option, train_option_table().at(key.option).help);
        break;
      case KeyUse::special:
        text += fmt::format("| `{}` | honoured | {} |\n", key.path, key.why);
        break;
      case KeyUse::unused:
        text += fmt::format("| `{}` | nothing to do | {} |\n", key.path, key.why);
        break;
      case KeyUse::limited:
        text += key.accepted.empty()
                    ? fmt::format("| `{}` | refused | {} |\n", key.path, key.why)
                    : fmt::format("| `{}` | only `{}` | {} |\n", key.path, join(key.accepted, "`, `"), key.why);
        break;
      case KeyUse::feature:
        text += fmt::format("| `{}` | only off | {} |\n", key.path, key.why);
        break;
      case KeyUse::section:
        if (!key.why.empty()) text += fmt::format("| `{}` | section | {} |\n", key.path, key.why);
        break;
    }
  }
  return text;
}

}  // namespace so
