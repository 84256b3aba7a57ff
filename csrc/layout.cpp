#include "layout.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

namespace headrace {

namespace {

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

class LayoutBuilder {
 public:
  void add_vector(const std::string& name, int32_t size, int32_t rows = 1) {
    add({name, true, WeightKind::kBf16, rows, size, 0, static_cast<size_t>(rows) * size * sizeof(float)});
  }
  void add_norm(const std::string& name, const ModelConfig& config, int32_t size) {
    add_vector(name, size);
    if (config.norm_bias) add_vector(name + "_bias", size);
  }
  void add_matrix(const std::string& name, WeightKind kind, int32_t rows, int32_t columns) {
    size_t num_panels = static_cast<size_t>(rows) / kPanel;
    add({name, false, kind, rows, columns, 0, num_panels * panel_bytes(kind, columns)});
  }
  Layout layout;

 private:
  void add(Slot slot) {
    slot.offset = layout.total_bytes;
    layout.total_bytes += round_up(slot.num_bytes, 64);
    layout.slots.push_back(std::move(slot));
  }
};

int32_t padded(int32_t size, int multiple) { return static_cast<int32_t>(round_up(size, multiple)); }

void add_latents(LayoutBuilder& builder, const ModelConfig& config, const std::string& prefix, int32_t num_heads) {
  const Mla& mla = config.mla;
  const auto add_matrix = [&](const std::string& name, int32_t rows, int32_t columns) {
    builder.add_matrix(prefix + name, config.layer_kind(prefix + name), rows, padded(columns, kDepth));
  };
  if (mla.query_rank > 0) {
    builder.add_vector(prefix + "q_a_norm", mla.query_rank);
    add_matrix("q_b", padded(num_heads * mla.query_dim(), kPanel), mla.query_rank);
  }
  builder.add_vector(prefix + "kv_a_norm", mla.rank);
  add_matrix("k_b", num_heads * padded(mla.rank, kPanel), mla.key_dim);
  add_matrix("v_b", num_heads * padded(mla.value_dim, kPanel), mla.rank);
}

void add_attention(LayoutBuilder& builder, const ModelConfig& config, int32_t index, const std::string& prefix) {
  const AttentionShape shape = config.attention(index);
  const LayerSizes sizes = layer_sizes(config, index);
  if (config.qkv_bias) builder.add_vector(prefix + "qkv_bias", sizes.qkv_padded);
  if (!config.qk_norm.empty()) {
    builder.add_vector(prefix + "q_norm", config.has_norm_of_heads() ? shape.head_dim : sizes.queries);
    if (sizes.keys > 0) builder.add_vector(prefix + "k_norm", config.has_norm_of_heads() ? shape.head_dim : sizes.keys);
  }
  if (config.sinks) builder.add_vector(prefix + "sinks", shape.num_heads);
  if (config.mla.rank > 0) add_latents(builder, config, prefix, shape.num_heads);
}

void add_state_mixer(LayoutBuilder& builder, const Model& model, const StateLayer& state, const std::string& prefix,
                     bool has_bias, bool has_norm) {
  builder.add_vector(prefix + "mix_conv", state.channels, state.taps);
  if (has_bias) builder.add_vector(prefix + "mix_conv_bias", state.channels);
  if (state.num_gates > 0) builder.add_vector(prefix + "mix_small", model.hidden_padded, state.num_gates);
  if (state.mixer == Mixer::kDelta) {
    builder.add_vector(prefix + "mix_decay", state.delta.value_heads);
    builder.add_vector(prefix + "mix_dt_bias", state.delta.value_heads);
    builder.add_vector(prefix + "mix_norm", state.delta.value_dim);
  }
  if (state.mixer != Mixer::kSsd) return;
  for (const char* name : {"mix_decay", "mix_dt_bias", "mix_skip"}) builder.add_vector(prefix + name, state.ssd.heads);
  if (has_norm) builder.add_vector(prefix + "mix_norm", state.ssd.num_values());
}

void add_mlp(LayoutBuilder& builder, const ModelConfig& config, const Model& model, int32_t index, const std::string& prefix) {
  const auto add_matrix = [&](const std::string& name, int32_t rows, int32_t columns) {
    builder.add_matrix(prefix + name, config.layer_kind(prefix + name), rows, columns);
  };
  const int32_t hidden = model.hidden_padded, outputs = static_cast<int32_t>(round_up(config.hidden_size, kPanel));
  if (config.has_norms_before(index) && !config.shared_norm) builder.add_norm(prefix + "mlp_norm", config, hidden);
  const Experts& experts = model.experts;
  const bool routed = config.has_experts(index);
  const int32_t inner = routed ? experts.size_padded : layer_sizes(config, index).intermediate_padded;
  const int32_t copies = routed ? experts.total() : 1;
  const bool biased = routed ? config.expert_bias : config.mlp_bias;
  if (routed) builder.add_vector(prefix + "router", hidden, experts.num_scores());
  if (routed && config.router_bias) builder.add_vector(prefix + "router_bias", experts.score_pitch());
  if (routed && config.choice_bias) builder.add_vector(prefix + "choice_bias", experts.score_pitch());
  const int32_t inputs_of_down = config.gated_mlp ? 2 * inner : inner;
  const bool latent = routed && experts.has_latent;
  add_matrix("gate_up", copies * inputs_of_down, latent ? experts.io_padded : hidden);
  if (biased) builder.add_vector(prefix + "gate_up_bias", inputs_of_down, copies);
  if (model.activation == Activation::kXielu) builder.add_vector(prefix + "xielu", kXieluNumbers);
  add_matrix("down", copies * (latent ? experts.io_padded : outputs), inner);
  if (biased) builder.add_vector(prefix + "down_bias", hidden, copies);
  if (latent) {
    add_matrix("latent_down", experts.io_padded, hidden);
    add_matrix("latent_up", outputs, experts.io_padded);
  }
  if (const auto shared = static_cast<int32_t>(round_up(config.shared_size, kDepth)); routed && shared > 0) {
    add_matrix("shared_gate_up", config.gated_mlp ? 2 * shared : shared, hidden);
    add_matrix("shared_down", outputs, shared);
  }
  if (routed && config.own_norms) {
    for (const char* name : {"router_norm", "expert_norm", "shared_post_norm", "expert_post_norm"})
      builder.add_norm(prefix + name, config, hidden);
    builder.add_vector(prefix + "expert_scales", experts.score_pitch());
  }
  if (config.has_norms_after(index)) builder.add_norm(prefix + "post_mlp_norm", config, hidden);
  if (config.layer_input_size > 0) {
    const auto size = static_cast<int32_t>(round_up(config.layer_input_size, kDepth));
    add_matrix("input_gate", size, hidden);
    add_matrix("input_out", outputs, size);
    builder.add_norm(prefix + "input_norm", config, hidden);
  }
  if (config.layer_scales) builder.add_vector(prefix + "layer_scale", 1);
}

void add_layer(LayoutBuilder& builder, const ModelConfig& config, const Model& model, int32_t index) {
  const std::string prefix = "layers." + std::to_string(index) + ".";
  const auto add_matrix = [&](const std::string& name, int32_t rows, int32_t columns) {
    builder.add_matrix(prefix + name, config.layer_kind(prefix + name), rows, columns);
  };
  const int32_t hidden = model.hidden_padded, outputs = static_cast<int32_t>(round_up(config.hidden_size, kPanel));
  const LayerSizes sizes = layer_sizes(config, index);
  const Mixer mixer = config.mixer(index);
  const bool attends = config.attends(index), has_state = keeps_state(mixer);
  const StateLayer state = state_sizes(config, index);
  if (mixer != Mixer::kNone) {
    if (config.has_attn_norm(index)) builder.add_norm(prefix + "attn_norm", config, hidden);
    add_matrix(attends ? "qkv" : "mix_in", sizes.qkv_padded, hidden);
    if (attends) add_attention(builder, config, index, prefix);
    if (has_state) add_state_mixer(builder, model, state, prefix, config.conv_bias, config.ssd_norm);
    add_matrix("o", outputs, sizes.attention_padded);
    if (attends && has_state) add_matrix("mix_out", outputs, state.mixed_padded);
    if (config.o_bias && attends) builder.add_vector(prefix + "o_bias", hidden);
    if (config.has_norms_after(index)) builder.add_norm(prefix + "post_attn_norm", config, hidden);
  }
  if (config.has_mlp(index)) add_mlp(builder, config, model, index, prefix);
}

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

void check_experts(const ModelConfig& config) {
  if (config.num_experts == 0) return;
  require(config.num_experts <= 4096 && config.top_k > 0 && config.top_k <= config.num_experts,
          "top_k is " + std::to_string(config.top_k) + " of " + std::to_string(config.num_experts) + " experts");
  require(config.expert_size > 0 && config.num_shared_experts >= 0 && config.num_shared_experts <= 1024,
          "every dimension of the experts must be positive");
  require(int64_t{1} * (config.num_experts + config.num_shared_experts) * config.expert_size < (int64_t{1} << 28),
          "the experts of a layer are too large");
  require(config.norms == (config.own_norms ? "both" : "pre") && !config.parallel && !config.mlp_bias,
          "experts beside attention or with a norm after them, and dense layers with biases beside them, are not supported");
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

Activation parse_activation(const std::string& name) {
  static const char* const names[] = {"silu", "gelu_tanh", "gelu_erf", "relu", "relu2", "clamped_swiglu", "xielu"};
  const auto found = std::find(std::begin(names), std::end(names), name);
  require(found != std::end(names), "activation is " + name + "; expected silu, gelu_tanh, gelu_erf, relu, relu2, clamped_swiglu or xielu");
  return static_cast<Activation>(found - std::begin(names));
}

void check_shape(const AttentionShape& shape) {
  require(shape.num_heads > 0 && shape.num_kv_heads > 0 && shape.num_heads % shape.num_kv_heads == 0,
          "num_heads must be a multiple of num_kv_heads");
  require(shape.head_dim > 0 && shape.head_dim % 16 == 0 && shape.head_dim <= kMaxHeadDim,
          "head_dim is " + std::to_string(shape.head_dim) + "; expected a multiple of 16 up to " + std::to_string(kMaxHeadDim));
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
  require(config.num_kv_heads == 1 && config.head_dim == mla.rank + mla.rope_dim,
          "latent attention has one KV head: the latent and the part that turns");
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

void ModelConfig::check() const {
  main_kind();
  require(kv_dtype == "bf16" || kv_dtype == "int8", "kv_dtype is " + kv_dtype + "; expected bf16 or int8");
  require(num_layers > 0 && hidden_size > 0 && intermediate_size > 0 && vocab_size > 0,
          "every dimension of the model must be positive");
  check_attention(*this);
  check_states(*this);
  require(intermediate_sizes.empty() || intermediate_sizes.size() == static_cast<size_t>(num_layers),
          "intermediate_sizes must have one entry a layer");
  for (const int32_t size : intermediate_sizes) require(size > 0, "the width of an MLP must be positive");
  require(layer_input_size >= 0 && layer_input_size <= (1 << 16) && layer_input_size % kPanel == 0,
          "layer_input_size is " + std::to_string(layer_input_size) + "; expected a multiple of 32");
  require((layer_input_size == 0 && !layer_scales) || (norms == "both" && norm == "rms"),
          "layers with inputs or scales need RMS norms before and after their parts");
  require(num_positions >= 0 && num_positions <= (1 << 20), "num_positions must lie between 0 and 1048576");
  for (const auto& [slot, format] : layer_formats)
    require(format == "w8" || format == "w4_symmetric" || format == "fp4",
            slot + " is " + format + "; expected w8, w4_symmetric or fp4");
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
  if (found->second == "w8") return WeightKind::kW8;
  return found->second == "fp4" ? WeightKind::kFp4 : WeightKind::kW4Symmetric;
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

const Slot& Layout::find(const std::string& name) const {
  for (const Slot& slot : slots)
    if (slot.name == name) return slot;
  throw std::out_of_range("no packed weight " + name);
}

size_t panel_bytes(WeightKind kind, int32_t k) {
  const size_t depth = static_cast<size_t>(k);
  switch (kind) {
    case WeightKind::kBf16: return kPanel * depth * 2;
    case WeightKind::kW8: return depth / kDepth * kW8GroupBytes + kPanel * sizeof(float);
    case WeightKind::kW4: return depth / kW4Group * (kPanel * kW4Group / 2 + kPanel * 4);
    case WeightKind::kW4Symmetric:
    case WeightKind::kFp4: return depth / kW4Group * (kPanel * kW4Group / 2 + kPanel * 2);
  }
  return 0;
}

Layout make_layout(const ModelConfig& config) {
  const Model model = make_dimensions(config);
  LayoutBuilder builder;
  builder.add_matrix("embed", config.embed_kind(), model.vocab_padded, model.hidden_padded);
  for (int32_t i = 0; i < config.num_layers; i++) add_layer(builder, config, model, i);
  if (config.num_positions > 0) builder.add_vector("positions", model.hidden_padded, config.num_positions);
  if (config.embedding_norm) builder.add_norm("embed_norm", config, model.hidden_padded);
  if (config.layer_input_size > 0) {
    const int32_t total = config.num_layers * config.layer_input_size;
    builder.add_matrix("layer_proj", config.embed_kind(), total, model.hidden_padded);
    builder.add_vector("layer_proj_norm", config.layer_input_size);
  }
  if (config.num_token_types > 0) builder.add_vector("token_types", model.hidden_padded, config.num_token_types);
  if (config.norms != "stream") builder.add_norm("final_norm", config, model.hidden_padded);
  if (!config.tie_embeddings)
    builder.add_matrix("lm_head", config.embed_kind(), model.vocab_padded, model.hidden_padded);
  if (config.head_bias) builder.add_vector("lm_head_bias", model.vocab_padded);
  return std::move(builder.layout);
}

LayerSizes layer_sizes(const ModelConfig& config, int32_t layer) {
  const AttentionShape shape = config.attention(layer);
  LayerSizes sizes{};
  sizes.intermediate_padded = static_cast<int32_t>(round_up(config.intermediate(layer), kDepth));
  const StateLayer state = state_sizes(config, layer);
  if (!config.attends(layer)) {
    sizes.qkv_padded = state.in_padded;
    sizes.attention_padded = state.mixed_padded;
    return sizes;
  }
  const Mla& mla = config.mla;
  sizes.queries = shape.num_heads * shape.head_dim;
  sizes.keys = config.owns_kv(layer) ? shape.num_kv_heads * shape.head_dim : 0;
  sizes.values = shape.keys_as_values ? 0 : sizes.keys;
  int32_t head_outputs = sizes.queries;
  if (mla.rank > 0) {
    sizes.queries = mla.query_rank > 0 ? mla.query_rank : shape.num_heads * mla.query_dim();
    sizes.values = 0;
    head_outputs = shape.num_heads * mla.value_dim;
  }
  sizes.gates = config.num_gates(layer);
  const size_t outputs = size_t{1} * sizes.queries + sizes.keys + sizes.values + sizes.gates;
  sizes.qkv_padded = static_cast<int32_t>(round_up(outputs, kPanel)) + state.in_padded;
  sizes.attention_padded = static_cast<int32_t>(round_up(head_outputs, kDepth));
  return sizes;
}

// A row of the delta rule is q, k, v and z, in whose place is the result.
StateLayer delta_sizes(const ModelConfig& config) {
  StateLayer state{};
  state.mixer = Mixer::kDelta;
  state.delta = {config.delta_key_heads, config.delta_value_heads, config.delta_key_dim, config.delta_value_dim,
                 config.delta_is_tiled,  config.delta_beta_scale,  config.delta_norm_eps, nullptr, nullptr, nullptr};
  state.channels = 2 * state.delta.num_keys() + state.delta.num_values();
  state.taps = config.delta_taps;
  state.num_gates = 2 * state.delta.value_heads;
  state.num_units = state.delta.key_heads;
  state.outputs = state.channels;
  state.mixed_padded = static_cast<int32_t>(round_up(state.delta.num_values(), kDepth));
  state.in_padded = state.row_size = static_cast<int32_t>(round_up(state.channels + state.mixed_padded, kPanel));
  state.scan_size = static_cast<size_t>(state.delta.value_heads) * state.delta.head_size();
  return state;
}

// A row of a state space model is z, x, B and C; the result takes the place of z.
StateLayer ssd_sizes(const ModelConfig& config) {
  StateLayer state{};
  state.mixer = Mixer::kSsd;
  Ssd& ssd = state.ssd;
  ssd.heads = config.ssd_heads;
  ssd.head_dim = config.ssd_head_dim;
  ssd.state_size = config.ssd_state_size;
  ssd.groups = config.ssd_groups;
  ssd.norm_eps = config.ssd_norm_eps;
  state.channels = ssd.num_values() + 2 * ssd.groups * ssd.state_size;
  state.taps = config.conv_taps;
  state.num_gates = state.num_units = ssd.heads;
  state.conv_inputs = state.mixed_padded = ssd.num_values();
  state.row_size = ssd.num_values() + state.channels;
  state.in_padded = static_cast<int32_t>(round_up(state.row_size, kPanel));
  state.scan_size = static_cast<size_t>(ssd.heads) * ssd.head_size();
  return state;
}

// A row of a short convolution is B, C and x, all padded; the result takes the place of B.
StateLayer conv_sizes(const ModelConfig& config) {
  StateLayer state{};
  state.mixer = Mixer::kConv;
  state.channels = static_cast<int32_t>(round_up(config.hidden_size, kDepth));
  state.taps = config.conv_taps;
  state.num_units = state.channels / kDepth;
  state.conv_inputs = 2 * state.channels;
  state.in_padded = state.row_size = 3 * state.channels;
  state.mixed_padded = state.channels;
  return state;
}

// Beside attention the row of a state follows q, k and v in a row of `qkv`.
StateLayer state_sizes(const ModelConfig& config, int32_t layer) {
  StateLayer state{};
  state.mixer = config.mixer(layer);
  if (!keeps_state(state.mixer)) return state;
  state = state.mixer == Mixer::kDelta ? delta_sizes(config) : state.mixer == Mixer::kSsd ? ssd_sizes(config) : conv_sizes(config);
  if (!config.attends(layer)) return state;
  const AttentionShape shape = config.attention(layer);
  const auto first = static_cast<int32_t>(round_up((shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim, kPanel));
  state.conv_inputs += first;
  state.outputs += first;
  state.row_size += first;
  return state;
}

namespace {

size_t kv_head_bytes(const ModelConfig& config, int32_t head_dim) {
  const size_t numbers = size_t{kBlockTokens} * (head_dim + (config.mla.rank > 0 ? config.mla.rank : head_dim));
  return config.kv_kind() == KvKind::kBf16 ? numbers * 2 : numbers + 2 * kBlockTokens * sizeof(float);
}

}  // namespace

KvLayout make_kv_layout(const ModelConfig& config) {
  KvLayout layout;
  const auto bytes_of = [&](int32_t layer) {
    const AttentionShape shape = config.attention(layer);
    return kv_head_bytes(config, shape.head_dim) * shape.num_kv_heads;
  };
  size_t largest = 0;
  for (int32_t i = 0; i < config.num_layers; i++) largest = std::max(largest, bytes_of(i));
  for (int32_t i = 0; i < config.num_layers; i++) {
    const int32_t source = config.kv_source(i);
    const size_t head_bytes = kv_head_bytes(config, config.attention(i).head_dim);
    // Without a causal mask a sequence is computed in one step. Its keys live for one layer, while other rows of it may
    // still attend to those of the layer before: two places are enough.
    if (!config.causal) layout.places.push_back({i % 2 * largest, head_bytes});
    else if (source == i) layout.places.push_back({layout.block_bytes, head_bytes});
    else layout.places.push_back(source < 0 ? KvPlace{} : layout.places[source]);
    if (config.causal && source == i) layout.block_bytes += bytes_of(i);
  }
  if (!config.causal) layout.block_bytes = std::min(config.num_layers, 2) * largest;
  return layout;
}

size_t kv_block_bytes(const ModelConfig& config) { return make_kv_layout(config).block_bytes; }

Model make_dimensions(const ModelConfig& config) {
  config.check();
  Model model{};
  model.num_layers = config.num_layers;
  model.hidden = config.hidden_size;
  model.hidden_padded = static_cast<int32_t>(round_up(config.hidden_size, kDepth));
  for (int32_t i = 0; i < config.num_layers; i++) {
    const LayerSizes sizes = layer_sizes(config, i);
    model.attention_padded = std::max(model.attention_padded, sizes.attention_padded);
    const StateLayer state = state_sizes(config, i);
    model.attention_padded = std::max(model.attention_padded, state.mixed_padded);
    model.qkv_padded = std::max({model.qkv_padded, sizes.qkv_padded, state.row_size});
    if (state.mixer == Mixer::kDelta) model.scan_scratch = std::max(model.scan_scratch, state.delta.scratch_size());
    if (state.mixer == Mixer::kSsd) model.scan_scratch = std::max(model.scan_scratch, state.ssd.scratch_size());
    model.has_states |= keeps_state(state.mixer);
    model.gates_pitch = std::max(model.gates_pitch, static_cast<int32_t>(round_up(state.num_gates, 16)));
    model.intermediate_padded = std::max(model.intermediate_padded, sizes.intermediate_padded);
  }
  model.vocab = config.vocab_size;
  model.vocab_padded = static_cast<int32_t>(round_up(config.vocab_size, kPanel));
  model.activation = parse_activation(config.activation);
  model.norm = config.norm == "rms" ? NormKind::kRms : NormKind::kLayer;
  model.causal = config.causal;
  model.norms_stream = config.norms == "stream";
  model.parallel = config.parallel;
  model.has_gate = config.gated_mlp;
  model.has_softplus_gates = config.gate_activation == "softplus";
  model.norms_by_head = config.qk_norm == "layer";
  model.norms_rotated = config.qk_norm == "rotated";
  model.norms_values = config.value_norm;
  model.layer_input_size = config.layer_input_size;
  if (config.num_experts > 0) {
    model.experts = {config.num_experts, config.top_k, config.num_shared_experts,
                     static_cast<int32_t>(round_up(config.expert_size, kDepth)),
                     static_cast<int32_t>(round_up(config.latent_size > 0 ? config.latent_size : config.hidden_size, kDepth)),
                     config.latent_size > 0, config.renormalize, config.shared_gate, config.own_norms,
                     config.expert_tolerance, parse_choice(config)};
  }
  model.mla = config.mla;
  model.norm_eps = config.norm_eps;
  model.embedding_scale = config.embedding_scale;
  model.attention_softcap = config.attention_softcap;
  model.logit_softcap = config.logit_softcap;
  model.qkv_clip = config.qkv_clip;
  model.swiglu_limit = config.swiglu_limit;
  return model;
}

}  // namespace headrace
