// The description of a model and the limits of a runtime, as the loader passes them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model.h"

namespace headrace {

// The heads of the attention of a layer.
struct AttentionShape {
  int32_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  bool keys_as_values = false;  // the layer has no v: its values are the projected keys, before norm and rotation
};

// The fields of `ModelSpec` (inference/models/spec.py) that the runtime needs.
struct ModelConfig {
  std::string dtype = "bf16";     // bf16, w8a8, w8a16, w4a8 or w4a16
  std::string kv_dtype = "bf16";  // bf16 or int8
  int32_t num_layers = 0, hidden_size = 0, intermediate_size = 0;
  int32_t num_heads = 0, num_kv_heads = 0, head_dim = 0, vocab_size = 0;
  std::vector<AttentionShape> attention_shapes;  // per layer; empty: the three sizes above in all layers
  std::vector<int32_t> kv_sources;   // per layer: the layer whose KV it attends to, -1 for none; empty: its own
  std::vector<std::string> mixers;   // per layer: attention, conv, delta, ssd or none; empty: attention in all layers
  int32_t delta_key_heads = 0, delta_value_heads = 0, delta_key_dim = 0, delta_value_dim = 0, delta_taps = 0;
  bool delta_is_tiled = false;       // value heads lie as in the files of llama.cpp
  bool delta_by_channel = false;     // decays of each number of a key, as in Kimi Delta Attention
  float delta_beta_scale = 1.0f, delta_norm_eps = 0.0f;
  bool attention_beside = false;     // layers that keep a state also have attention, of the same norm
  std::vector<bool> mlps;            // per layer; empty: all layers have an MLP
  int32_t ssd_heads = 0, ssd_head_dim = 0, ssd_state_size = 0, ssd_groups = 1;  // of the state space model
  float ssd_norm_eps = 1e-5f;
  bool conv_bias = false, ssd_norm = true;
  int32_t conv_taps = 0;             // of the short convolutions
  int32_t num_positions = 0;         // rows of the table of learned positions; 0: there is none
  int32_t num_token_types = 0;       // rows of the table of token types; 0: there is none
  std::string activation = "silu";   // silu, gelu_tanh, gelu_erf, relu, relu2, clamped_swiglu or xielu
  std::string norm = "rms";          // rms or layer
  std::string norms = "pre";         // pre, post, both or stream
  std::string state_norms;           // of layers with a state; empty: as in other layers
  std::string qk_norm;               // head, rotated, full or layer; empty: none
  bool causal = true;                // false: a token attends to all of its sequence
  bool embedding_norm = false;       // a norm of the embeddings
  bool first_attn_norm = true;       // false: the first layer has no norm before attention
  bool norm_bias = false, parallel = false, shared_norm = false, gated_mlp = true, tie_embeddings = false;
  bool qkv_bias = false, o_bias = false, mlp_bias = false, head_bias = false;
  float norm_eps = 1e-5f, post_norm_eps = 1e-5f, embedding_scale = 1.0f, attention_scale = 0.0f;
  float attention_softcap = 0.0f, logit_softcap = 0.0f, qkv_clip = 0.0f;  // 0: none
  float swiglu_limit = 0.0f;              // of the clamped swiglu
  std::string attention_gate;              // of the output of attention: element or head; empty: none
  std::string gate_activation = "sigmoid";  // sigmoid or softplus
  bool value_norm = false;                // values are divided by the root mean square of their head
  bool layer_scales = false;              // the output of each layer has a factor
  int32_t layer_input_size = 0;           // numbers of the own input of each layer; 0: there is none
  std::vector<int32_t> intermediate_sizes;  // per layer; empty: `intermediate_size` in all of them
  bool own_norms = false;                 // of experts, the MLP beside them, and the router
  bool sinks = false;                     // a score of each head that takes part in the softmax of attention
  std::vector<int32_t> windows;           // per layer
  std::vector<float> distance_slopes;     // per head, times the distance of a key to the query; empty: none
  int32_t num_experts = 0, top_k = 0, expert_size = 0;  // num_experts 0: all layers are dense
  int32_t num_shared_experts = 0;                       // of the same size as the others
  bool renormalize = false, shared_gate = false, expert_bias = false, router_bias = false;
  float expert_tolerance = 0.0f;          // of the sparsemixer; 0: the factors follow from `scoring`
  std::string scoring = "softmax";        // of the router's logits: softmax, sigmoid or sqrt_softplus
  std::string group_score = "best_two";   // best or best_two: the scores by which a group of experts is chosen
  int32_t num_groups = 1, top_groups = 1;
  bool choice_bias = false;               // added to the scores for the choice only
  Mla mla{};                              // rank 0: none
  float router_softcap = 0.0f, sum_floor = 0.0f, factor_scale = 1.0f;
  int32_t latent_size = 0;                // input and output of the routed experts; 0: the hidden size
  int32_t shared_size = 0;                // of the shared MLP beside experts with a latent input; 0: none
  std::vector<bool> expert_layers;        // per layer; empty: experts in all layers
  // Slots of layers that w4a8 and w4a16 store as w8, w4_symmetric, fp4, ternary, w2 or w3 instead of w4. If there is one
  // for v of a layer, v is not a part of qkv.
  std::map<std::string, std::string> layer_formats;
  std::vector<std::vector<double>> rope_frequencies;  // of each rope: radians per position, half as many as a head has numbers
  std::vector<double> rope_factors;                   // of each rope: factor of the cosines and sines of pairs that turn
  std::vector<int32_t> rope_of_layer;                 // per layer; empty: the first rope on all layers

  // Throws std::invalid_argument if a value is invalid.
  void check() const;
  bool has_experts(int32_t layer) const;
  bool has_norm_of_heads() const;  // the same weights for every head
  WeightKind main_kind() const;  // of most matrices
  int32_t terms() const;         // of an activation
  WeightKind layer_kind(const std::string& slot) const;
  bool has_own_values(int32_t layer) const;  // v is a matrix of its own
  WeightKind embed_kind() const;  // 4 bits cost too much quality in the embedding and the LM head
  KvKind kv_kind() const;
  AttentionShape attention(int32_t layer) const;
  int32_t intermediate(int32_t layer) const;
  int32_t num_gates(int32_t layer) const;  // of the output of attention, for one row
  int32_t kv_source(int32_t layer) const;
  bool owns_kv(int32_t layer) const { return kv_source(layer) == layer; }
  int32_t rope(int32_t layer) const { return rope_of_layer.empty() ? 0 : rope_of_layer[layer]; }
  Mixer mixer(int32_t layer) const;
  const std::string& norms_of(int32_t layer) const;
  bool has_norms_before(int32_t layer) const;
  bool has_norms_after(int32_t layer) const { return norms_of(layer) != "pre"; }
  bool attends(int32_t layer) const {  // alone or beside a state
    return mixer(layer) == Mixer::kAttention || (attention_beside && keeps_state(mixer(layer)));
  }
  bool has_mlp(int32_t layer) const { return mlps.empty() || mlps[static_cast<size_t>(layer)]; }
  bool has_attn_norm(int32_t layer) const;
};

// Throw std::invalid_argument for unknown names.
ExpertChoice parse_choice(const ModelConfig& config);
Activation parse_activation(const std::string& name);
WeightKind parse_kind(const std::string& what, const std::string& name);

// The fields of `RunnerLimits` (inference/runner/step.py) that determine memory.
struct Limits {
  int32_t num_blocks = 0, max_step_tokens = 0, max_step_sequences = 0, max_step_rows = 0, max_context_tokens = 0;
  int32_t max_adapters = 0, max_adapter_rank = 0;
  int32_t num_state_slots = 0, max_draft_tokens = 0;
};

}  // namespace headrace
