// Small models from the bytes of an input: a valid network, then changes of any of its fields.
#pragma once

#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "config.h"

namespace headrace {

inline constexpr int32_t kSizes[] = {0, 1, 2, 3, 4, 8, 16, 32, 48, 64, 96, 128, 256, 512, 576, -1, 4096, 1 << 16,
                                     1 << 20, 1 << 24, 1 << 26, 1 << 28, INT32_MAX, INT32_MIN};
inline constexpr float kNumbers[] = {0.0f, 1e-6f, 0.5f, 1.0f, 30.0f, -1.0f, 1e30f};

inline int32_t any_size(FuzzedDataProvider& input) {
  return input.ConsumeProbability<float>() < 0.9f ? input.PickValueInArray(kSizes) : input.ConsumeIntegral<int32_t>();
}

using Choices = std::vector<std::string>;

inline const std::vector<int32_t ModelConfig::*>& int_fields() {
  using C = ModelConfig;
  static const std::vector<int32_t C::*> fields = {
      &C::num_layers, &C::hidden_size, &C::intermediate_size, &C::num_heads, &C::num_kv_heads, &C::head_dim,
      &C::vocab_size, &C::delta_key_heads, &C::delta_value_heads, &C::delta_key_dim, &C::delta_value_dim,
      &C::delta_taps, &C::ssd_heads, &C::ssd_head_dim, &C::ssd_state_size, &C::ssd_groups, &C::conv_taps,
      &C::num_positions, &C::num_token_types, &C::layer_input_size, &C::num_experts, &C::top_k, &C::expert_size,
      &C::num_shared_experts, &C::num_groups, &C::top_groups, &C::latent_size, &C::shared_size};
  return fields;
}

inline const std::vector<bool ModelConfig::*>& bool_fields() {
  using C = ModelConfig;
  static const std::vector<bool C::*> fields = {
      &C::delta_is_tiled, &C::delta_by_channel, &C::attention_beside, &C::conv_bias, &C::ssd_norm, &C::causal,
      &C::embedding_norm, &C::first_attn_norm, &C::norm_bias, &C::parallel, &C::shared_norm, &C::gated_mlp,
      &C::tie_embeddings, &C::qkv_bias, &C::o_bias, &C::mlp_bias, &C::head_bias, &C::value_norm, &C::layer_scales,
      &C::own_norms, &C::sinks, &C::renormalize, &C::shared_gate, &C::expert_bias, &C::router_bias, &C::choice_bias};
  return fields;
}

inline const std::vector<float ModelConfig::*>& float_fields() {
  using C = ModelConfig;
  static const std::vector<float C::*> fields = {
      &C::delta_beta_scale, &C::delta_norm_eps, &C::ssd_norm_eps, &C::norm_eps, &C::post_norm_eps, &C::embedding_scale,
      &C::attention_scale, &C::attention_softcap, &C::logit_softcap, &C::qkv_clip, &C::swiglu_limit,
      &C::expert_tolerance, &C::router_softcap, &C::sum_floor, &C::factor_scale};
  return fields;
}

inline const std::vector<std::pair<std::string ModelConfig::*, Choices>>& text_fields() {
  using C = ModelConfig;
  static const std::vector<std::pair<std::string C::*, Choices>> fields = {
      {&C::dtype, {"bf16", "w8a8", "w8a16", "w4a8", "w4a16"}},
      {&C::kv_dtype, {"bf16", "int8"}},
      {&C::activation, {"silu", "gelu_tanh", "gelu_erf", "relu", "relu2", "clamped_swiglu", "xielu"}},
      {&C::norm, {"rms", "layer"}},
      {&C::norms, {"pre", "post", "both", "stream"}},
      {&C::state_norms, {"", "pre"}},
      {&C::qk_norm, {"", "head", "rotated", "full", "layer"}},
      {&C::attention_gate, {"", "element", "head"}},
      {&C::gate_activation, {"sigmoid", "softplus"}},
      {&C::scoring, {"softmax", "sigmoid", "sqrt_softplus"}},
      {&C::group_score, {"best", "best_two"}}};
  return fields;
}

// Networks with each kind of part, so that changes of one field reach what reads it.
inline ModelConfig usual_config(FuzzedDataProvider& input) {
  ModelConfig config;
  config.num_layers = 2;
  config.hidden_size = config.intermediate_size = 64;
  config.num_heads = config.num_kv_heads = 2;
  config.head_dim = 16;
  config.vocab_size = 40;
  config.swiglu_limit = 7.0f;
  const int kind = input.ConsumeIntegralInRange(0, 4);
  if (kind == 1) {
    config.num_experts = 4, config.top_k = 2, config.expert_size = 64;
  } else if (kind == 2) {
    config.mixers = {"delta", "attention"};
    config.delta_key_heads = 1, config.delta_value_heads = 2, config.delta_key_dim = config.delta_value_dim = 32;
    config.delta_taps = 4;
  } else if (kind == 3) {
    config.mixers = {"ssd", "conv"};
    config.ssd_heads = 4, config.ssd_head_dim = config.ssd_state_size = 16, config.conv_taps = 3;
  } else if (kind == 4) {
    config.mla = {32, 32, 16, 16, 16, 1e-6f, 0, 0};
    config.num_kv_heads = 1, config.head_dim = 48;
  }
  return config;
}

inline void change_layers(FuzzedDataProvider& input, ModelConfig& config) {
  static const Choices mixers = {"attention", "conv", "delta", "ssd", "none"};
  static const Choices formats = {"w8", "w4", "w4_symmetric", "fp4", "ternary", "w2", "w3"};
  static const Choices matrices = {"qkv", "o", "v", "gate_up", "down", "q_b", "k_b", "shared_gate_up"};
  const auto of_layers = [&](auto make) {
    std::vector<decltype(make())> values(static_cast<size_t>(std::clamp(config.num_layers, 0, 8)));
    for (size_t i = 0; i < values.size(); i++) values[i] = make();
    return values;
  };
  const auto pick = [&](const Choices& names) { return names[input.ConsumeIntegralInRange<size_t>(0, names.size() - 1)]; };
  const auto small = [&] { return input.ConsumeIntegralInRange(-1, 3); };
  switch (input.ConsumeIntegralInRange(0, 9)) {
    case 0: config.kv_sources = of_layers(small); break;
    case 1: config.mixers = of_layers([&] { return pick(mixers); }); break;
    case 2: config.mlps = of_layers([&] { return input.ConsumeBool(); }); break;
    case 3: config.windows = of_layers([&] { return any_size(input); }); break;
    case 4: config.rope_of_layer = of_layers(small); break;
    case 5: config.intermediate_sizes = of_layers([&] { return any_size(input); }); break;
    case 6: config.expert_layers = of_layers([&] { return input.ConsumeBool(); }); break;
    case 7: config.layer_formats["layers." + std::to_string(small()) + "." + pick(matrices)] = pick(formats); break;
    case 8: config.distance_slopes.assign(input.ConsumeIntegralInRange<size_t>(0, 4), 0.5f); break;
    default:
      config.attention_shapes = of_layers(
          [&] { return AttentionShape{any_size(input), any_size(input), any_size(input), input.ConsumeBool()}; });
  }
}

inline void change_latents(FuzzedDataProvider& input, Mla& mla) {
  int32_t* const fields[] = {&mla.rank, &mla.query_rank, &mla.key_dim, &mla.rope_dim, &mla.value_dim, &mla.growth_period};
  *fields[input.ConsumeIntegralInRange<size_t>(0, std::size(fields) - 1)] = any_size(input);
}

inline void change_field(FuzzedDataProvider& input, ModelConfig& config) {
  const auto pick = [&](const auto& fields) { return fields[input.ConsumeIntegralInRange<size_t>(0, fields.size() - 1)]; };
  switch (input.ConsumeIntegralInRange(0, 5)) {
    case 0: config.*pick(int_fields()) = any_size(input); break;
    case 1: config.*pick(bool_fields()) = input.ConsumeBool(); break;
    case 2: config.*pick(float_fields()) = input.PickValueInArray(kNumbers); break;
    case 3: {
      const auto& [field, choices] = pick(text_fields());
      config.*field = pick(choices);
      break;
    }
    case 4: change_latents(input, config.mla); break;
    default: change_layers(input, config);
  }
}

// The tables of rotations that a config needs; a wrong number of them is another input's.
inline void add_ropes(ModelConfig& config) {
  const AttentionShape shape = config.attention_shapes.empty()
                                   ? AttentionShape{config.num_heads, config.num_kv_heads, config.head_dim}
                                   : config.attention_shapes[0];
  const int32_t size = config.mla.rank > 0 ? config.mla.rope_dim : shape.head_dim;
  config.rope_frequencies = {std::vector<double>(static_cast<size_t>(std::clamp(size, 0, 4096)) / 2, 0.1)};
  config.rope_factors = {1.0};
}

inline ModelConfig any_config(FuzzedDataProvider& input) {
  ModelConfig config = usual_config(input);
  const int num_changes = input.ConsumeIntegralInRange(0, 8);
  for (int i = 0; i < num_changes; i++) change_field(input, config);
  add_ropes(config);
  return config;
}

}  // namespace headrace
