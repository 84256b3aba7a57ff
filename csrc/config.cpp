#include "config.h"

#include <algorithm>
#include <iterator>

#include "require.h"

namespace headrace {

ExpertChoice parse_choice(const ModelConfig& config) {
  static const char* const names[] = {"softmax", "sigmoid", "sqrt_softplus"};
  const auto found = std::find(std::begin(names), std::end(names), config.scoring);
  require(found != std::end(names), "scoring is " + config.scoring + "; expected softmax, sigmoid or sqrt_softplus");
  require(config.group_score == "best" || config.group_score == "best_two",
          "group_score is " + config.group_score + "; expected best or best_two");
  const auto scoring = static_cast<Scoring>(found - std::begin(names));
  const bool by_logits = scoring == Scoring::kSoftmax && !config.choice_bias && config.num_groups == 1;
  return {scoring, by_logits, config.num_groups, config.top_groups, config.group_score == "best" ? 1 : 2,
          config.router_softcap, config.sum_floor, config.factor_scale};
}

Activation parse_activation(const std::string& name) {
  static const char* const names[] = {"silu", "gelu_tanh", "gelu_erf", "relu", "relu2", "clamped_swiglu", "xielu"};
  const auto found = std::find(std::begin(names), std::end(names), name);
  require(found != std::end(names), "activation is " + name + "; expected silu, gelu_tanh, gelu_erf, relu, relu2, clamped_swiglu or xielu");
  return static_cast<Activation>(found - std::begin(names));
}

namespace {

// So that sums and products of a few sizes are numbers of 32 bits.
constexpr int32_t kMaxSize = 1 << 24, kMaxLayers = 4096;

void check_size(const char* name, int64_t size, int32_t limit = kMaxSize) {
  require(size > 0 && size <= limit,
          std::string(name) + " is " + std::to_string(size) + "; expected 1 to " + std::to_string(limit));
}

void check_experts(const ModelConfig& config) {
  if (config.num_experts == 0) return;
  require(config.num_experts <= 4096 && config.top_k > 0 && config.top_k <= config.num_experts,
          "top_k is " + std::to_string(config.top_k) + " of " + std::to_string(config.num_experts) + " experts");
  require(config.expert_size > 0 && config.num_shared_experts >= 0 && config.num_shared_experts <= 1024,
          "every dimension of the experts must be positive");
  require(int64_t{1} * (config.num_experts + config.num_shared_experts) * config.expert_size < (int64_t{1} << 28),
          "the experts of a layer are too large");
  require(int64_t{1} * (config.num_experts + config.num_shared_experts) * config.hidden_size < (int64_t{1} << 30),
          "the experts of a layer are too large");
  require((config.norms == "both" || (config.norms == "pre" && !config.own_norms)) && !config.parallel && !config.mlp_bias,
          "experts beside attention or without a norm before them, and dense layers with biases beside them, are not supported");
  require(config.norms == "pre" || config.own_norms ||
              (config.latent_size == 0 && config.layer_input_size == 0 && !config.layer_scales),
          "experts with a norm after them have neither a latent input nor inputs or scales of layers");
  require(config.latent_size >= 0 && config.shared_size >= 0 && config.latent_size <= (1 << 24) &&
              config.shared_size <= (1 << 24) && (config.shared_size == 0 || config.latent_size > 0 || config.own_norms),
          "the sizes of a latent input and of the shared MLP beside it must not be negative");
  require(config.latent_size == 0 || (!config.expert_bias && !config.shared_gate && config.num_shared_experts == 0),
          "experts with a latent input have no biases, and the shared MLP beside them no score");
  require(!config.own_norms || (config.shared_size > 0 && config.latent_size == 0 && config.factor_scale == 1 &&
                                !config.router_bias && config.layer_input_size == 0),
          "experts with norms of their own are beside a dense MLP, and have neither biases nor inputs of layers");
  require(config.num_shared_experts == 0 || !config.expert_bias, "shared experts with biases are not supported");
  require(config.expert_tolerance >= 0 && (config.expert_tolerance == 0 || !config.renormalize),
          "expert_tolerance must not be negative, nor above 0 if factors are renormalized");
  require(config.expert_tolerance == 0 || parse_choice(config).by_logits, "a sparsemixer chooses experts by their logits");
  require(config.num_groups > 0 && config.num_groups <= kMaxExpertGroups && config.num_experts % config.num_groups == 0 &&
              config.top_groups > 0 && config.top_groups <= config.num_groups &&
              config.top_groups * (config.num_experts / config.num_groups) >= config.top_k,
          "the best groups of experts must hold top_k of them");
  require(config.router_softcap >= 0 && config.sum_floor >= 0 && config.factor_scale > 0,
          "the softcap and the floor of a router must not be negative, and its scale must be positive");
  require(config.expert_layers.empty() || config.expert_layers.size() == static_cast<size_t>(config.num_layers),
          "expert_layers must have one entry a layer");
}

void check_shape(const AttentionShape& shape) {
  require(shape.num_heads > 0 && shape.num_kv_heads > 0 && shape.num_heads % shape.num_kv_heads == 0,
          "num_heads must be a multiple of num_kv_heads");
  require(shape.head_dim > 0 && shape.head_dim % 16 == 0 && shape.head_dim <= kMaxHeadDim,
          "head_dim is " + std::to_string(shape.head_dim) + "; expected a multiple of 16 up to " + std::to_string(kMaxHeadDim));
  check_size("the size of all heads", (int64_t{1} * shape.num_heads + 2 * int64_t{shape.num_kv_heads}) * shape.head_dim);
}

// Without a causal mask a sequence is computed in one step, and its keys live for one layer.
void check_kv_source(const ModelConfig& config, int32_t layer) {
  const int32_t source = config.kv_source(layer);
  if (source == layer || !config.attends(layer)) return;
  const std::string name = "layer " + std::to_string(layer) + " attends to the keys of layer " + std::to_string(source);
  require(config.causal && source >= 0 && source < layer && config.owns_kv(source), name + ", which it cannot");
  const AttentionShape own = config.attention(layer), other = config.attention(source);
  require(own.num_kv_heads == other.num_kv_heads && own.head_dim == other.head_dim, name + ", whose heads differ");
}

void check_mla(const ModelConfig& config) {
  const Mla& mla = config.mla;
  if (mla.rank == 0) return;
  const auto refuse = [](bool found, const char* part) {
    require(!found, std::string("latent attention with ") + part + " is not supported");
  };
  refuse(!config.attention_shapes.empty(), "heads that differ by layer");
  refuse(!config.attention_gate.empty(), "gates");
  refuse(!config.qk_norm.empty() || config.qkv_clip > 0, "norms or clipping of heads");
  refuse(!config.causal, "attention to later tokens");
  require(mla.rank > 0 && mla.rank % 16 == 0 && mla.query_rank >= 0 && mla.query_rank % 16 == 0,
          "the ranks of latent attention must be multiples of 16");
  require(mla.key_dim > 0 && mla.rope_dim > 0 && mla.rope_dim % 2 == 0 && mla.value_dim > 0,
          "every part of a head of latent attention must have numbers");
  for (const int32_t size : {mla.rank, mla.query_rank, mla.key_dim, mla.rope_dim, mla.value_dim})
    require(size <= kMaxSize, "a part of latent attention is larger than " + std::to_string(kMaxSize));
  require(config.num_kv_heads == 1 && config.head_dim == mla.rank + mla.rope_dim,
          "latent attention has one KV head: the latent and the part that turns");
  require(shared_key_size(config.head_dim, mla.rank) <= kMaxHeadDim,
          "a latent and the part that turns have at most " + std::to_string(kMaxHeadDim) + " numbers, each padded to " +
              std::to_string(kKeyPart));
  require(int64_t{1} * config.num_heads * std::max({mla.query_dim(), mla.rank, mla.value_dim}) < (int64_t{1} << 26),
          "the heads of latent attention are too large");
  require(mla.growth >= 0 && (mla.growth == 0 || mla.growth_period > 0), "queries grow by periods of positions");
}

void check_attention(const ModelConfig& config) {
  check_mla(config);
  const auto one_a_layer = [&](const char* name, size_t size) {
    require(size == 0 || size == static_cast<size_t>(config.num_layers), std::string(name) + " must have one entry a layer");
  };
  one_a_layer("mixers", config.mixers.size());
  one_a_layer("attention_shapes", config.attention_shapes.size());
  one_a_layer("kv_sources", config.kv_sources.size());
  one_a_layer("windows", config.windows.size());
  one_a_layer("rope_of_layer", config.rope_of_layer.size());
  for (const int32_t window : config.windows) require(window >= 0, "a window must not be negative");
  const int32_t num_ropes = static_cast<int32_t>(config.rope_frequencies.size());
  require(num_ropes > 0 && config.rope_factors.size() == config.rope_frequencies.size(), "every rope must have a factor");
  for (int32_t i = 0; i < config.num_layers; i++) {
    const AttentionShape shape = config.attention(i);
    check_shape(shape);
    check_kv_source(config, i);
    require(config.distance_slopes.empty() || config.distance_slopes.size() == static_cast<size_t>(shape.num_heads),
            "distance_slopes must have one entry a head");
    const int32_t rope = config.rope(i);
    require(rope >= 0 && rope < num_ropes, "rope_of_layer names rope " + std::to_string(rope) + "; expected 0 to " +
                                               std::to_string(num_ropes - 1));
    const int32_t turning = config.mla.rank > 0 ? config.mla.rope_dim : shape.head_dim;
    require(config.rope_frequencies[rope].size() == static_cast<size_t>(turning) / 2,
            "the rope of a layer must have head_dim / 2 frequencies");
  }
}

void check_delta(const ModelConfig& config) {
  require(config.delta_key_heads > 0 && config.delta_value_heads > 0 && config.delta_value_heads % config.delta_key_heads == 0,
          "the value heads of the delta rule must be a multiple of its key heads");
  for (const int32_t size : {config.delta_key_dim, config.delta_value_dim}) {
    require(size > 0 && size % 16 == 0 && size <= kMaxHeadDim,
            "a head of the delta rule has " + std::to_string(size) + " numbers; expected a multiple of 16 up to 512");
  }
  check_size("the size of all heads of the delta rule",
             int64_t{2} * config.delta_key_heads * config.delta_key_dim + int64_t{2} * config.delta_value_heads * config.delta_value_dim);
  require(!config.delta_by_channel || int64_t{1} * config.delta_value_heads * config.delta_value_dim % kDepth == 0,
          "the delta rule with decays by channel needs a multiple of 64 values");
}

void check_ssd(const ModelConfig& config) {
  const int64_t values = int64_t{1} * config.ssd_heads * config.ssd_head_dim;
  require(config.ssd_heads > 0 && config.ssd_groups > 0 && config.ssd_heads % config.ssd_groups == 0,
          "a state space model has " + std::to_string(config.ssd_heads) + " heads in " + std::to_string(config.ssd_groups) +
              " groups; expected a multiple");
  require(config.ssd_head_dim > 0 && config.ssd_head_dim % 16 == 0 && config.ssd_state_size > 0 &&
              config.ssd_state_size % 16 == 0 && values % kDepth == 0,
          "a state space model has " + std::to_string(config.ssd_heads) + " heads of " + std::to_string(config.ssd_head_dim) +
              " numbers and a state of " + std::to_string(config.ssd_state_size) + "; expected multiples of 16, and of 64 in all heads");
  require(values < (1 << 20) && int64_t{1} * config.ssd_state_size * config.ssd_head_dim < (1 << 20) &&
              int64_t{1} * config.ssd_groups * config.ssd_state_size < (1 << 20),
          "the state of a head is too large");
}

void check_states(const ModelConfig& config) {
  for (int32_t i = 0; i < config.num_layers; i++) {
    const Mixer mixer = config.mixer(i);
    require(mixer != Mixer::kNone || config.has_mlp(i), "layer " + std::to_string(i) + " has neither a mixer nor an MLP");
    require(mixer != Mixer::kNone || !config.parallel, "a layer without a mixer beside parallel ones is not supported");
    if (!keeps_state(mixer)) continue;
    if (mixer == Mixer::kSsd) check_ssd(config);
    require(mixer == Mixer::kConv || config.has_attn_norm(i),
            "layer " + std::to_string(i) + " has gates of a state, which need a norm before the layer");
    require(!config.attention_beside || (mixer == Mixer::kSsd && config.attention_shapes.empty() &&
                                         config.attention_gate.empty() && config.norms == "pre"),
            "attention is supported beside a state space model only, without gates, shapes by layer and norms after it");
    require(config.causal && !config.parallel, "state layers beside other parts, or that see later tokens, are not supported");
    if (config.mixer(i) == Mixer::kDelta) check_delta(config);
    const int32_t taps = config.mixer(i) == Mixer::kDelta ? config.delta_taps : config.conv_taps;
    require(taps >= 2 && taps <= kMaxTaps,
            "a convolution has " + std::to_string(taps) + " taps; expected 2 to " + std::to_string(kMaxTaps));
  }
}

void check_norms(const ModelConfig& config) {
  const auto expect = [](const char* field, const std::string& value, const std::vector<std::string>& names) {
    require(std::find(names.begin(), names.end(), value) != names.end(), std::string(field) + " is " + value);
  };
  expect("norm", config.norm, {"rms", "layer"});
  expect("norms", config.norms, {"pre", "post", "both", "stream"});
  expect("state_norms", config.state_norms, {"", "pre"});
  expect("qk_norm", config.qk_norm, {"", "head", "rotated", "full", "layer"});
  require(config.norm == "layer" || !config.norm_bias, "an RMS norm has no bias");
  require(config.norms == "pre" || !config.parallel, "parallel attention and MLP need their norms before them");
  require(config.parallel || !config.shared_norm, "only parallel attention and MLP can share a norm");
  require(!config.shared_norm || config.first_attn_norm, "a norm that the first MLP shares must exist");
}

}  // namespace

bool ModelConfig::has_norm_of_heads() const { return qk_norm == "head" || qk_norm == "rotated"; }

bool ModelConfig::has_experts(int32_t layer) const {
  return num_experts > 0 && (expert_layers.empty() || expert_layers[layer]);
}

WeightKind parse_kind(const std::string& what, const std::string& name) {
  static const char* const names[] = {"bf16", "w8", "w4", "w4_symmetric", "fp4", "ternary", "w2", "w3"};
  const auto found = std::find(std::begin(names), std::end(names), name);
  require(found != std::end(names),
          what + " is " + name + "; expected bf16, w8, w4, w4_symmetric, fp4, ternary, w2 or w3");
  return static_cast<WeightKind>(found - std::begin(names));
}

namespace {

// Values of their own format follow whole panels of q and k, which read the same inputs.
void check_values(const ModelConfig& config, int32_t layer) {
  if (!config.has_own_values(layer)) return;
  const std::string prefix = "layers." + std::to_string(layer) + ".";
  const AttentionShape shape = config.attention(layer);
  const int64_t before = int64_t{1} * (shape.num_heads + shape.num_kv_heads) * shape.head_dim;
  require(config.mixer(layer) == Mixer::kAttention && config.mla.rank == 0 && config.owns_kv(layer) &&
              !shape.keys_as_values && config.attention_gate.empty() && before % kPanel == 0,
          prefix + "v cannot be apart from qkv in this network");
  const WeightKind first = config.layer_kind(prefix + "qkv"), values = config.layer_kind(prefix + "v");
  require(first != WeightKind::kW8 && values != WeightKind::kW8 && (has_low_bits(first) || !has_low_bits(values)),
          prefix + "v cannot share the inputs of qkv");
}

}  // namespace

void ModelConfig::check() const {
  main_kind();
  require(kv_dtype == "bf16" || kv_dtype == "int8", "kv_dtype is " + kv_dtype + "; expected bf16 or int8");
  check_size("num_layers", num_layers, kMaxLayers);
  check_size("hidden_size", hidden_size);
  check_size("intermediate_size", intermediate_size);
  check_size("vocab_size", vocab_size);
  check_attention(*this);
  check_states(*this);
  require(intermediate_sizes.empty() || intermediate_sizes.size() == static_cast<size_t>(num_layers),
          "intermediate_sizes must have one entry a layer");
  for (const int32_t size : intermediate_sizes) check_size("the width of an MLP", size);
  require(layer_input_size >= 0 && layer_input_size <= (1 << 16) && layer_input_size % kPanel == 0,
          "layer_input_size is " + std::to_string(layer_input_size) + "; expected a multiple of 32");
  require((layer_input_size == 0 && !layer_scales) || (norms == "both" && norm == "rms"),
          "layers with inputs or scales need RMS norms before and after their parts");
  require(num_positions >= 0 && num_positions <= (1 << 20), "num_positions must lie between 0 and 1048576");
  for (const auto& [slot, format] : layer_formats)
    require(parse_kind(slot, format) != WeightKind::kBf16, slot + " is bf16; expected at most 8 bits");
  for (int32_t i = 0; i < num_layers; i++) check_values(*this, i);
  require(parse_activation(activation) != Activation::kClampedSwiglu || (gated_mlp && swiglu_limit > 0),
          "clamped_swiglu needs a gate and a limit above 0");
  require(parse_activation(activation) != Activation::kXielu || (!gated_mlp && num_experts == 0),
          "xielu needs a plain MLP without experts");
  require(attention_gate.empty() || attention_gate == "element" || attention_gate == "head",
          "attention_gate is " + attention_gate + "; expected element or head");
  require(gate_activation == "sigmoid" || gate_activation == "softplus",
          "gate_activation is " + gate_activation + "; expected sigmoid or softplus");
  check_norms(*this);
  check_experts(*this);
}

WeightKind ModelConfig::main_kind() const {
  if (dtype == "bf16") return WeightKind::kBf16;
  if (dtype == "w8a8" || dtype == "w8a16") return WeightKind::kW8;
  require(dtype == "w4a8" || dtype == "w4a16", "dtype is " + dtype + "; expected bf16, w8a16, w8a8, w4a16 or w4a8");
  return WeightKind::kW4;
}

int32_t ModelConfig::terms() const { return dtype == "w8a16" || dtype == "w4a16" ? 2 : 1; }

WeightKind ModelConfig::layer_kind(const std::string& slot) const {
  const auto found = layer_formats.find(slot);
  if (main_kind() != WeightKind::kW4 || found == layer_formats.end()) return main_kind();
  return parse_kind(slot, found->second);
}

bool ModelConfig::has_own_values(int32_t layer) const {
  return main_kind() == WeightKind::kW4 && layer_formats.count("layers." + std::to_string(layer) + ".v") > 0;
}

WeightKind ModelConfig::embed_kind() const {
  return main_kind() == WeightKind::kBf16 ? WeightKind::kBf16 : WeightKind::kW8;
}

int32_t ModelConfig::intermediate(int32_t layer) const {
  return intermediate_sizes.empty() ? intermediate_size : intermediate_sizes[layer];
}

int32_t ModelConfig::num_gates(int32_t layer) const {
  const AttentionShape shape = attention(layer);
  return attention_gate.empty() ? 0 : attention_gate == "head" ? shape.num_heads : shape.num_heads * shape.head_dim;
}

const std::string& ModelConfig::norms_of(int32_t layer) const {
  return state_norms.empty() || mixer(layer) == Mixer::kAttention ? norms : state_norms;
}

bool ModelConfig::has_norms_before(int32_t layer) const { return norms_of(layer) == "pre" || norms_of(layer) == "both"; }

bool ModelConfig::has_attn_norm(int32_t layer) const { return has_norms_before(layer) && (layer > 0 || first_attn_norm); }

AttentionShape ModelConfig::attention(int32_t layer) const {
  return attention_shapes.empty() ? AttentionShape{num_heads, num_kv_heads, head_dim} : attention_shapes[layer];
}

int32_t ModelConfig::kv_source(int32_t layer) const {
  if (!attends(layer)) return -1;
  return kv_sources.empty() ? layer : kv_sources[layer];
}

Mixer ModelConfig::mixer(int32_t layer) const {
  static const char* const names[] = {"attention", "conv", "delta", "ssd", "none"};
  if (mixers.empty()) return Mixer::kAttention;
  const std::string& name = mixers[static_cast<size_t>(layer)];
  const auto found = std::find(std::begin(names), std::end(names), name);
  require(found != std::end(names), "the mixer of a layer is " + name + "; expected attention, conv, delta, ssd or none");
  return static_cast<Mixer>(found - std::begin(names));
}

KvKind ModelConfig::kv_kind() const { return kv_dtype == "int8" ? KvKind::kInt8 : KvKind::kBf16; }

}  // namespace headrace
