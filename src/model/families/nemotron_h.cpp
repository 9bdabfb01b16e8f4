// NemotronHForCausalLM: Nemotron 3 and Nemotron-H. A layer is one block: a Mamba2 state space, attention that knows no
// positions, an MLP, or a mixture of experts beside a shared one, chosen by sigmoids and a bias that nothing trains.
// MLPs and experts have no gate. Files call the model "backbone", and have experts one by one.
#include <array>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "model/config.h"
#include "model/families/family.h"

namespace so {
namespace {

// A block's norm and projections are called the same whatever the block is.
constexpr std::array<TensorName, 25> nemotron_h_names{{
    {Role::embedding, "backbone.embeddings.weight"},
    {Role::input_norm, "backbone.layers.{}.norm.weight"},
    {Role::q, "backbone.layers.{}.mixer.q_proj.weight"},
    {Role::k, "backbone.layers.{}.mixer.k_proj.weight"},
    {Role::v, "backbone.layers.{}.mixer.v_proj.weight"},
    {Role::o, "backbone.layers.{}.mixer.o_proj.weight"},
    {Role::space_in, "backbone.layers.{}.mixer.in_proj.weight"},
    {Role::space_convolution, "backbone.layers.{}.mixer.conv1d.weight"},
    {Role::space_convolution_bias, "backbone.layers.{}.mixer.conv1d.bias"},
    {Role::space_dt_bias, "backbone.layers.{}.mixer.dt_bias"},
    {Role::space_a_log, "backbone.layers.{}.mixer.A_log"},
    {Role::space_skip, "backbone.layers.{}.mixer.D"},
    {Role::space_norm, "backbone.layers.{}.mixer.norm.weight"},
    {Role::space_out, "backbone.layers.{}.mixer.out_proj.weight"},
    {Role::mlp_norm, "backbone.layers.{}.norm.weight"},
    {Role::up, "backbone.layers.{}.mixer.up_proj.weight"},
    {Role::down, "backbone.layers.{}.mixer.down_proj.weight"},
    {Role::router, "backbone.layers.{}.mixer.gate.weight"},
    {Role::selection_bias, "backbone.layers.{}.mixer.gate.e_score_correction_bias"},
    {Role::expert_up, "backbone.layers.{}.mixer.experts.{}.up_proj.weight"},
    {Role::expert_down, "backbone.layers.{}.mixer.experts.{}.down_proj.weight"},
    {Role::shared_up, "backbone.layers.{}.mixer.shared_experts.up_proj.weight"},
    {Role::shared_down, "backbone.layers.{}.mixer.shared_experts.down_proj.weight"},
    {Role::final_norm, "backbone.norm_f.weight"},
    {Role::lm_head, "lm_head.weight"},
}};

constexpr LayerSpec of_kind(TokenMixer mixer, bool mlp, bool experts) {
  return {.experts = experts, .rotation = LayerRotation::none, .mixer = mixer, .mlp = mlp};
}

// The kinds of layers: by the names of transformers 5, by those of its older versions, and by a pattern's letters.
struct LayerKind {
  std::string_view name, old_name;
  char letter;
  LayerSpec spec;
};
constexpr std::array<LayerKind, 4> layer_kinds{{
    {"linear_attention", "mamba", 'M', of_kind(TokenMixer::state_space, false, false)},
    {"full_attention", "attention", '*', of_kind(TokenMixer::attention, false, false)},
    {"moe", "moe", 'E', of_kind(TokenMixer::none, true, true)},
    {"mlp", "mlp", '-', of_kind(TokenMixer::none, true, false)},
}};

std::vector<LayerSpec> read_names(const ConfigReader& config, const char* key) {
  std::vector<LayerSpec> layers;
  for (const std::string& name : config.texts(key)) {
    const std::size_t before = layers.size();
    for (const LayerKind& kind : layer_kinds)
      if (name == kind.name || name == kind.old_name) layers.push_back(kind.spec);
    if (layers.size() == before)
      config.refuse(key,
                    fmt::format("'{}' is not supported, only 'linear_attention', 'full_attention', 'moe' and 'mlp'",
                                printable(name)));
  }
  return layers;
}

std::vector<LayerSpec> read_pattern(const ConfigReader& config, const char* key) {
  std::vector<LayerSpec> layers;
  for (const char letter : config.text(key, "")) {
    const std::size_t before = layers.size();
    for (const LayerKind& kind : layer_kinds)
      if (letter == kind.letter) layers.push_back(kind.spec);
    if (layers.size() == before)
      config.refuse(
          key, fmt::format("'{}' is no letter of a layer; those are M, *, E and -", printable(std::string(1, letter))));
  }
  return layers;
}

// layers_block_type or layer_types, names by layer, or hybrid_override_pattern, letters; without any as transformers.
void read_layers(const ConfigReader& config, DecoderSpec& spec) {
  constexpr std::size_t most_layers = 1024;
  const char* from = nullptr;
  for (const char* key : {"layers_block_type", "layer_types", "hybrid_override_pattern"}) {
    if (!config.has(key)) continue;
    const bool pattern = std::string_view(key) == "hybrid_override_pattern";
    std::vector<LayerSpec> layers = pattern ? read_pattern(config, key) : read_names(config, key);
    if (layers.empty()) config.refuse(key, "names no layer");
    if (layers.size() > most_layers)
      config.refuse(key, fmt::format("has {} layers, more than any model (at most {})", layers.size(), most_layers));
    if (from != nullptr && layers != spec.layer_specs)
      config.refuse(key, fmt::format("names other layers than {}; remove the one that is not meant", from));
    if (from == nullptr) spec.layer_specs = std::move(layers);
    if (from == nullptr) from = key;
  }
  if (from == nullptr)
    for (const std::size_t kind : {0, 2, 1, 3}) spec.layer_specs.push_back(layer_kinds.at(kind).spec);
  spec.layers = std::ssize(spec.layer_specs);
  if (config.positive_int("num_hidden_layers", spec.layers) != spec.layers)
    config.refuse("num_hidden_layers", fmt::format("is not the {} of {}, by which transformers goes", spec.layers,
                                                   from != nullptr ? from : "a model that names no layers"));
}

// Returns the name of a key that some files call otherwise: the other one if it is there, as transformers takes it.
const char* key_of(const ConfigReader& config, const char* usual, const char* other) {
  return config.has(other) ? other : usual;
}

void read_state_space(const ConfigReader& config, StateSpaceSpec& space) {
  const char* const groups = key_of(config, "n_groups", "mamba_n_groups");
  const char* const convolution = key_of(config, "conv_kernel", "mamba_d_conv");
  const char* const least = key_of(config, "time_step_min", "mamba_dt_min");
  const char* const most = key_of(config, "time_step_max", "mamba_dt_max");
  space.heads = config.positive_int("mamba_num_heads", 128);
  space.head_dim = config.positive_int("mamba_head_dim", 64);
  space.groups = config.positive_int(groups, 8);
  space.state = config.positive_int("ssm_state_size", 128);
  space.convolution = config.positive_int(convolution, 4);
  space.convolution_bias = config.boolean(key_of(config, "use_conv_bias", "mamba_conv_bias"), true);
  if (space.heads % space.groups != 0) config.refuse(groups, "must divide mamba_num_heads");
  constexpr std::int64_t widest_convolution = 8, widest = std::int64_t{1} << 24;
  if (space.convolution > widest_convolution)
    config.refuse(convolution, fmt::format("at most {} are supported", widest_convolution));
  if (space.heads > widest || space.head_dim > widest / space.heads)
    config.refuse("mamba_num_heads", "with mamba_head_dim is more than any model has");
  if (space.state > widest / space.heads) config.refuse("ssm_state_size", "is more than any model has");
  // transformers limits steps by this key, and not by time_step_limit, which it has too and does not read.
  space.least_step = config.number(least, 0.001);
  space.most_step = config.positive_number(most, 0.1);
  space.floor_step = config.number(key_of(config, "time_step_floor", "mamba_dt_init_floor"), 1e-4);
}

void read_experts(const ConfigReader& config, DecoderSpec& spec) {
  ExpertSpec& e = spec.experts;
  e.activation.kind = ExpertActivation::Kind::relu_squared;
  if (spec.expert_layers() == 0) return;
  e.count = config.positive_int("n_routed_experts", 8);
  if (config.positive_int("num_local_experts", e.count) != e.count)
    config.refuse("num_local_experts", "must equal n_routed_experts, of which it is another name");
  e.per_token = config.positive_int("num_experts_per_tok", 2);
  e.intermediate = config.positive_int("moe_intermediate_size", 7688);
  e.shared_intermediate = config.positive_int("moe_shared_expert_intermediate_size", 7688);
  e.scores = RouterRule::Scores::sigmoid;
  e.renormalized = config.boolean("norm_topk_prob", true);
  e.scale = config.positive_number("routed_scaling_factor", 1);
  e.selection_bias = true;
  for (const char* key : {"n_group", "topk_group"})
    if (config.positive_int(key, 1) != 1)
      config.refuse(key, "only 1 is supported: experts are not chosen by groups here");
  if (config.positive_int("n_shared_experts", 1) != 1)
    config.refuse("n_shared_experts", "only 1 is supported, as in transformers, which does not read the key");
  if (config.has("moe_latent_size"))
    config.refuse("moe_latent_size", "experts that work in fewer columns than the model has are not supported");
}

void read(ConfigReader& config, DecoderSpec& spec) {
  if (spec.head_dim == 0) spec.head_dim = 128;
  spec.gate = MlpActivation::relu_squared;
  spec.final_norm_decays = true;  // norm_f.weight
  spec.tied_embeddings = config.boolean("tie_word_embeddings", false);
  const double epsilon = config.positive_number("layer_norm_epsilon", 1e-5);
  for (const char* key : {"rms_norm_eps", "norm_eps"})
    if (config.positive_number(key, epsilon) != epsilon)
      config.refuse(key, "is not layer_norm_epsilon, by which transformers goes");
  spec.rms_epsilon = static_cast<float>(epsilon);
  for (const char* key : {"attention_bias", "mlp_bias", "use_bias", "mamba_proj_bias"})
    if (config.boolean(key, false)) config.refuse(key, "only false is supported for this architecture");
  if (config.has("sliding_window")) config.refuse("sliding_window", "not supported for this architecture");
  if (config.boolean("residual_in_fp32", false))
    config.refuse("residual_in_fp32", "only false is supported, as in transformers, which does not read the key");
  config.only("mamba_hidden_act", "silu");
  config.only("mamba_ssm_cache_dtype", "float32");
  config.only_zero("hidden_dropout", "dropout is not supported; set it to 0, as these models are trained");
  read_layers(config, spec);
  if (spec.has_state_space()) read_state_space(config, spec.state_space);
  read_experts(config, spec);
}

// No layer rotates, so the table is as small as there is one. Published files have rope_theta nevertheless.
void read_rotations(const ConfigReader&, DecoderSpec& spec) { spec.rope.rotary_dim = 2; }

}  // namespace

const Family nemotron_h_family{
    .architecture = "NemotronHForCausalLM",
    .model_type = "nemotron_h",
    .names = nemotron_h_names,
    .read = read,
    .kv_heads = 8,
    .read_rotations = read_rotations,
    .activation_key = "mlp_hidden_act",
    .activation = "relu2",
    .sizes = {.vocab = 131072, .hidden = 4096, .layers = 4, .heads = 32, .intermediate = 21504, .positions = 4096}};

}  // namespace so
