#include "layout.h"

#include <algorithm>
#include <stdexcept>

#include "require.h"
#include "states.h"

namespace headrace {

namespace {

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
    require(!has_low_bits(kind) || columns % low_block(kind) == 0,
            name + " has " + std::to_string(columns) + " inputs; expected a multiple of " +
                std::to_string(low_block(kind)));
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

void add_delta(LayoutBuilder& builder, const Delta& delta, const std::string& prefix) {
  builder.add_vector(prefix + "mix_decay", delta.value_heads);
  builder.add_vector(prefix + "mix_dt_bias", delta.value_heads * (delta.by_channel ? delta.key_dim : 1));
  builder.add_vector(prefix + "mix_norm", delta.value_dim);
  if (!delta.by_channel) return;
  builder.add_vector(prefix + "mix_dt_b", delta.key_dim, delta.value_heads * delta.key_dim);
  builder.add_vector(prefix + "mix_z_b", delta.value_dim, delta.value_heads * delta.key_dim);
}

void add_state_mixer(LayoutBuilder& builder, const Model& model, const StateLayer& state, const std::string& prefix,
                     bool has_bias, bool has_norm) {
  builder.add_vector(prefix + "mix_conv", state.channels, state.taps);
  if (has_bias) builder.add_vector(prefix + "mix_conv_bias", state.channels);
  if (state.num_gates > 0) builder.add_vector(prefix + "mix_small", model.hidden_padded, state.num_gates);
  if (state.mixer == Mixer::kDelta) add_delta(builder, state.delta, prefix);
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
    const int32_t own_values = config.has_own_values(index) ? padded(sizes.values, kPanel) : 0;
    add_matrix(attends ? "qkv" : "mix_in", sizes.qkv_padded - own_values, hidden);
    if (own_values > 0) add_matrix("v", own_values, hidden);
    if (attends) add_attention(builder, config, index, prefix);
    if (has_state) add_state_mixer(builder, model, state, prefix, config.conv_bias, config.ssd_norm);
    add_matrix("o", outputs, sizes.attention_padded);
    if (attends && has_state) add_matrix("mix_out", outputs, state.mixed_padded);
    if (config.o_bias && attends) builder.add_vector(prefix + "o_bias", hidden);
    if (config.has_norms_after(index)) builder.add_norm(prefix + "post_attn_norm", config, hidden);
  }
  if (config.has_mlp(index)) add_mlp(builder, config, model, index, prefix);
}

}  // namespace

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
    case WeightKind::kTernary:
    case WeightKind::kW2:
    case WeightKind::kW3: return depth / low_block(kind) * low_block_bytes(kind);
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

namespace {

size_t kv_head_bytes(const ModelConfig& config, int32_t head_dim) {
  const int32_t rank = config.mla.rank;
  const size_t numbers = size_t{kBlockTokens} * (rank > 0 ? shared_key_size(head_dim, rank) : 2 * head_dim);
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
    if (i == 0 || config.owns_kv(i) || keeps_state(state.mixer)) model.storing_layers = i + 1;
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
