// Plain structures shared by the loader and the kernels: the memory layout of a model and of its KV cache.
//
// Letters: T tokens of a step, D head size, K inputs and N outputs of a matrix. Everything here is a view; `Runtime`
// owns the memory. Kernels are compiled once per ISA, so this header must not contain code that could differ (ODR).
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

constexpr int kPanel = 32;         // outputs of a weight panel
constexpr int kDepth = 64;         // K is padded to a multiple of this; also the group of W8 weights and their activations
constexpr int kW4Group = 32;       // group of W4 weights and of their activation scales
constexpr int kLowGroup = 16;      // inputs of weights of 2 and 3 bits that share an integer scale
constexpr float kTermRatio = 254;  // steps of the second term of an activation in one of the first: half a step is 127
constexpr int kBlockTokens = 32;   // tokens of a KV block
constexpr int kChunkTokens = 256;  // attention processes a context in chunks of this, at absolute positions
constexpr int kMaxHeadDim = 576;
constexpr int kBlockRows = 64;     // rows of a block in the row-split step
constexpr int kColumnRows = 128;   // the largest step that is split by columns
constexpr int kColumnRowsPerThread = 24;
constexpr int kLogitRows = 64;     // logit rows that are computed and sampled together
constexpr int kRedundantRows = 2;  // up to this many rows each thread quantizes redundantly
constexpr int kScanTokens = 16;    // tokens of a scan whose inputs are prepared together
constexpr int kMaxTaps = 64;       // tokens that the convolution of a state layer sees
constexpr int kRankBlock = 8;      // ranks of adapters are padded to a multiple of this
constexpr int kKeyPart = 32;       // likewise the parts of a key that holds its value: the int8 numbers of a token in a vector

constexpr size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Numbers of a cached key whose first `value_dim` numbers are also its value.
constexpr int shared_key_size(int dim, int value_dim) {
  return static_cast<int>(round_up(value_dim, kKeyPart) + round_up(dim - value_dim, kKeyPart));
}

// The largest number of rows for which a step is split by columns. With more rows per thread each weight is reused
// often enough that every thread can read all weights, and threads with their own rows need no barriers.
constexpr int column_rows(int num_threads) {
  const int rows = num_threads * kColumnRowsPerThread;
  return rows < kColumnRows ? rows : kColumnRows;
}

// Number of row blocks of a step that is split by rows: a multiple of the threads, of at most kBlockRows rows each.
constexpr int num_row_blocks(int num_tokens, int num_threads) {
  const int per_round = num_threads * kBlockRows;
  return num_threads * ((num_tokens + per_round - 1) / per_round);
}

enum class WeightKind : int32_t { kBf16 = 0, kW8 = 1, kW4 = 2, kW4Symmetric = 3, kFp4 = 4, kTernary = 5, kW2 = 6, kW3 = 7 };
constexpr bool has_nibbles(WeightKind kind) {
  return kind == WeightKind::kW4 || kind == WeightKind::kW4Symmetric || kind == WeightKind::kFp4;
}
constexpr bool has_low_bits(WeightKind kind) {
  return kind == WeightKind::kTernary || kind == WeightKind::kW2 || kind == WeightKind::kW3;
}
// The 16 values of e2m1 in halves, from the least.
constexpr uint8_t kFp4Middle = 12;
constexpr uint8_t kFp4Steps[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
enum class KvKind : int32_t { kBf16 = 0, kInt8 = 1 };
enum class Activation : int32_t { kSilu = 0, kGeluTanh = 1, kGeluErf = 2, kRelu = 3, kRelu2 = 4, kClampedSwiglu = 5, kXielu = 6 };
constexpr int32_t kXieluNumbers = 3;  // of a layer: those of squares, of exponentials and of x itself
enum class NormKind : int32_t { kRms = 0, kLayer = 1 };

// A matrix in panels of 32 outputs. Within a panel the inputs are the outermost dimension:
//   bf16  [K/2][32][2]  bf16
//   W8    per 64 inputs: [16][32][4] unsigned bytes b and [32] f16 scales; then [32] fp32 scales of whole outputs:
//         w = output scale * scale * (b - 128)
//   W4    per 32 inputs: [4][32][4] bytes (low nibble: inputs 8u..8u+3 of slice u, high nibble: 8u+4..8u+7),
//         then [32] f16 scales and [32] f16 minima: w = scale * nibble + minimum
//   W4 symmetric: the same without minima: w = scale * (nibble - 8)
//   FP4   likewise, with nibbles of e2m1: w = scale * (kFp4Steps[nibble] - kFp4Middle), half the scale of the number
//   Ternary, W2, W3: blocks of 128 (ternary) or 256 inputs, which are slabs of 64 inputs and then [32] f16 d, of W2 also
//         [32] f16 minus dmin. A slab has these parts:
//         [4][32][4] bytes: bits 2j and 2j + 1 of a byte of row u are the low bits of an input from 16u + 4j on;
//         W3: [2][32][4] bytes: bit j of a byte of row u is the third bit of an input from 32u + 4j on;
//         W2, W3: [32][4] bytes: the scales of the groups 0, 2, 1 and 3 of 16 inputs, which W3 stores signed; a byte of W2
//         has the scale in the low and the minimum in the high nibble.
//         Ternary: w = d * (code - 1); W2: w = d * scale * code - dmin * minimum; W3: w = d * scale * (code - 4)
constexpr size_t kW8Bytes = kPanel * kDepth;                // of a group of a panel, without its scales
constexpr size_t kW8GroupBytes = kW8Bytes + kPanel * 2;
constexpr size_t kLowRowBytes = kPanel * 4;  // of a part of a slab: 4 bytes of each output
constexpr int low_block(WeightKind kind) { return kind == WeightKind::kTernary ? 128 : 256; }
constexpr int low_scales_row(WeightKind kind) { return kind == WeightKind::kW3 ? 6 : 4; }
constexpr size_t low_slab_bytes(WeightKind kind) {
  return (low_scales_row(kind) + (kind == WeightKind::kTernary ? 0 : 1)) * kLowRowBytes;
}
constexpr size_t low_block_bytes(WeightKind kind) {
  return low_block(kind) / kDepth * low_slab_bytes(kind) + kPanel * (kind == WeightKind::kW2 ? 4 : 2);
}
struct Matrix {
  WeightKind kind;
  int32_t num_panels;
  int32_t k;  // padded
  size_t panel_bytes;
  const uint8_t* panels;
};

// The matrices of a layer that adapters may change.
enum AdaptedMatrix : int32_t { kAdaptedQkv, kAdaptedOutput, kAdaptedGateUp, kAdaptedDown };
constexpr int kNumAdapted = 4;
constexpr int kMaxProjections = 4;  // parts of qkv: q, k, v and gates

// Sizes of such a matrix. It has factors for each part: q, k and v, or gate and up.
struct AdaptedShape {
  int32_t num_parts, k, num_outputs;
};

// The addition of an adapter to a matrix, in int8; csrc/adapters.cpp describes the order of the numbers.
struct LowRank {
  int32_t rank;       // of each part, padded; 0: the adapter does not change the matrix
  int32_t num_ranks;  // of all parts
  const uint8_t* shrink;  // plus 128
  const int8_t* expand;
  const float* rank_scales;  // [num_ranks], of both factors
};

// A panel of `expand`: int8 numbers, then a scale for each output in half precision.
constexpr size_t expand_panel_bytes(int32_t rank) { return size_t{kPanel} * rank + kPanel * sizeof(uint16_t); }

struct AdapterTable {
  int32_t num_layers;
  const LowRank* matrices;            // [slots][layers][kNumAdapted]
  const uint8_t* const* parts;        // [layers][kNumAdapted]: of each 16 outputs
};

// The weights of a norm, and what is added after it; the weights are null if there is no norm at this place.
struct Norm {
  const float *weight, *bias;
  float eps;
};

// The heads of the attention of a layer.
struct Heads {
  int32_t count, num_kv, group, dim;  // `group`: query heads that share a KV head
  bool owns_kv;         // false: the layer attends to the keys of an earlier one, and computes none
  bool keys_as_values;  // the layer computes no values: they are its keys, before norm and rotation
  int32_t num_gates;    // of the output of attention, behind q, k and v; 0: none, `count`: one a head
  float scale;          // of the scores
  bool values_in_keys;  // the cache holds no values: they are the first `value_dim` numbers of the keys
  int32_t value_dim;    // numbers of a value
  int32_t output_dim;   // numbers that a head gives to `o`

  constexpr int outputs() const { return count * output_dim; }
  constexpr int queries() const { return count * dim; }
  constexpr int keys() const { return owns_kv ? num_kv * dim : 0; }
  constexpr int values() const { return keys_as_values ? 0 : keys(); }
  // Numbers of a cached key that holds its value, and of the first part of it.
  constexpr int shared_key() const { return shared_key_size(dim, value_dim); }
  constexpr int first_part() const { return static_cast<int>(round_up(value_dim, kKeyPart)); }
};

// How the tokens of a sequence see earlier ones: by attention, or by a state of fixed size (`Mixer` of
// inference/models/mixers.py).
enum class Mixer : int32_t { kAttention, kConv, kDelta, kSsd, kNone };
constexpr bool keeps_state(Mixer mixer) { return mixer != Mixer::kAttention && mixer != Mixer::kNone; }

// The gated delta rule; `DeltaSpec` of inference/models/mixers.py has its formulas.
struct Delta {
  int32_t key_heads, value_heads, key_dim, value_dim;
  bool is_tiled;  // value head h reads key head h % key_heads; otherwise those of a key head follow each other
  bool by_channel;  // each number of a key has its own decay; decays and gates are products with a latent of key_dim numbers
  float beta_scale, norm_eps;
  const float *decay, *dt_bias, *norm;
  const float *dt_b, *z_b;  // by channel: of each head [key_dim inputs][outputs]

  constexpr int key_head_of(int head) const {
    return is_tiled ? head % key_heads : head / (value_heads / key_heads);
  }
  constexpr int num_keys() const { return key_heads * key_dim; }
  constexpr int num_values() const { return value_heads * value_dim; }
  constexpr int value_padded() const { return static_cast<int>(round_up(value_dim, kPanel)); }
  constexpr int head_size() const { return key_dim * value_padded(); }  // numbers in the state of a value head
  // Numbers in the memory of a thread: a state for draft tokens, and for kScanTokens tokens q, k, v and the output; by
  // channel also the decays, and q and k times these.
  constexpr int row_size() const { return 2 * (key_dim + value_padded()) + (by_channel ? 3 * key_dim : 0); }
  constexpr int scratch_size() const { return head_size() + kScanTokens * row_size(); }
};

// The state space model of Mamba2 (`SsdSpec` of inference/models/mixers.py). A row of `mix_in` is z, x, B and C.
struct Ssd {
  int32_t heads, head_dim, state_size, groups;
  float norm_eps;
  const float *decay, *dt_bias, *skip;  // [heads]
  const float* norm;                    // [heads][head_dim]; null: there is none

  constexpr int num_values() const { return heads * head_dim; }
  constexpr int head_size() const { return state_size * head_dim; }  // numbers in the state of a head
  // Numbers in the memory of a thread: the state of a head for draft tokens, and for kScanTokens tokens B, C, x and the output.
  constexpr int scratch_size() const { return head_size() + kScanTokens * 2 * (state_size + head_dim); }
};

// A layer whose mixer keeps a state. Its first matrix (`Layer::qkv`) is `mix_in`, which gives a row of `qkv`.
struct StateLayer {
  Mixer mixer;
  int32_t channels, taps;        // of the convolution; channels are padded
  int32_t num_gates;             // of a scan, in float32
  int32_t num_latents;           // numbers of a row of `qkv`, from `first_latent` on, of which decays by channel are made
  int32_t first_latent;
  int32_t num_units;             // parts of the work on a sequence that threads share; each has channels of its own
  int32_t conv_inputs, outputs;  // first numbers in a row of `qkv` of the inputs of the convolution and of `o`
  int32_t in_padded, row_size;   // outputs of `mix_in`, and numbers of a row of `qkv`
  int32_t mixed_padded;          // inputs of `o`
  size_t scan_size;              // numbers in the state of the scan
  // Places in a slot: the state of the scan, the inputs of the convolution for the last taps - 1 tokens, followed by those
  // of draft tokens [token][channels], and the gates and the latents of draft tokens.
  size_t scan, rows, gates, latents;
  Delta delta;
  const float* filter;           // [taps][channels]
  const float* filter_bias;      // null: there is none
  const float* small;            // [gates][hidden_padded]; null without gates
  Ssd ssd;
};

// The slots of states. New sequences read one that stays zero, behind the others.
struct StateCache {
  float* base;
  size_t slot_size;
  int32_t num_slots;

  float* slot(int32_t slot) const { return base + (slot < 0 ? num_slots : slot) * slot_size; }
};

// Sizes of latent attention (inference/models/latent.py); `rank` 0: the model has none. A key is the latent and then the
// part that turns, the query of a head `key_dim` numbers and then those that turn.
struct Mla {
  int32_t rank, query_rank, key_dim, rope_dim, value_dim;
  float eps;                // of the norms of latents
  float growth;             // of queries, times the logarithm of 1 + whole periods of their position
  int32_t growth_period;

  constexpr int query_dim() const { return key_dim + rope_dim; }
  constexpr int query_outputs(const Heads& heads) const { return query_rank > 0 ? query_rank : heads.count * query_dim(); }
};

struct Layer {
  StateLayer state;
  Heads heads;
  Norm attn_norm, mlp_norm;            // before attention and MLP; the same one if they share it
  Norm post_attn_norm, post_mlp_norm;  // after them
  // null where there is none; with a router, `gate_up_bias` and `down_bias` have a row for each expert
  const float *qkv_bias, *o_bias, *gate_up_bias, *down_bias;
  const float *q_norm, *k_norm;        // of every head alike; null where there is none
  const float *q_norms, *k_norms;      // one weight for each output of q and k; null where there is none
  const float* rope;                            // [position][D], D/2 cosines and then D/2 sines
  const float* xielu;                           // [kXieluNumbers]; null with another activation
  const float* sinks;                           // [heads] scores beside those of the tokens; null: there are none
  const float* router;                          // [experts, then the shared gate][hidden_padded]; null in dense layers
  const float* router_bias;                     // [score_pitch]; null: there is none
  const float* expert_scales;                   // [experts] factors of their outputs; null: there are none
  Norm router_norm, expert_norm, shared_post_norm, expert_post_norm;  // of experts beside a dense MLP
  const float* choice_bias;                     // [score_pitch], of the choice only; null: there is none
  // gate and up alternate every 16 outputs (without a gate: up alone); with a router: of all experts
  Matrix qkv, o, gate_up, down;
  Matrix v;  // the last outputs of `qkv`, if they are stored in a format of their own; or without panels
  Matrix input_gate, input_out;                 // of the layer's own input; without panels if it has none
  Norm input_norm;
  float scale;                                  // of the output of the layer
  Matrix mix_out;                               // `o` of a state beside attention, whose `o` that is then; or without panels
  bool attends;
  // Of experts with a latent input: from the hidden state to it and back, and the shared MLP, without panels if there is none
  Matrix latent_down, latent_up, shared_gate_up, shared_down;
  const float *q_a_norm, *kv_a_norm;            // of the latents; null where there are none
  // Of latent attention: `qkv` has the outputs of q_a (or of q_b, where queries have no latent) and kv_a; k_b and v_b have
  // a matrix for each head
  Matrix q_b, k_b, v_b;
  int32_t window;                               // 0: none
};

constexpr int32_t kMaxExpertGroups = 64;

enum class Scoring { kSoftmax, kSigmoid, kSqrtSoftplus };

// How the logits of a router become a choice of experts and their factors; `MoeSpec` (inference/models/spec.py) says what
// each value means.
struct ExpertChoice {
  Scoring scoring;
  bool by_logits;  // the best logits are the best scores: a softmax without biases or groups
  int32_t num_groups, top_groups, scores_of_group;
  float softcap, sum_floor, scale;
};

// Experts of the layers with a router. The shared ones follow the others, and every row takes them.
struct Experts {
  int32_t count, top_k, num_shared, size_padded;  // count 0: the model has none
  int32_t io_padded;  // inputs and outputs of a routed expert
  bool has_latent;    // they differ from the hidden state
  bool renormalize, has_shared_gate;
  bool own_norms;  // beside a dense MLP (`shared_gate_up`): a norm each, also for the router
  float tolerance;  // sparsemixer: relative distance of scores that share the softmax of a choice; 0: one softmax
  ExpertChoice choice;

  constexpr int total() const { return count + num_shared; }
  constexpr int slots() const { return top_k + num_shared; }                   // experts of a row
  constexpr int num_scores() const { return count + (has_shared_gate ? 1 : 0); }
  constexpr int score_pitch() const { return (count + 1 + 15) / 16 * 16; }
};

struct Model {
  int32_t num_layers, hidden, hidden_padded, intermediate_padded;
  int32_t storing_layers;  // up to the last one that stores keys or a state; those after it need only the rows of outputs
  int32_t attention_padded, qkv_padded;  // of the largest layer
  int32_t vocab, vocab_padded;
  Activation activation;
  NormKind norm;
  bool causal;             // false: a token attends to all of its sequence, which is in one step
  bool norms_stream;       // the norms after attention and MLP apply to the stream, after the residual was added
  bool parallel;           // attention and MLP both read the input of the layer
  bool has_states;         // some layers keep states
  int32_t gates_pitch;     // of the scans of state layers
  int32_t scan_scratch;    // numbers that a scan keeps for each thread
  bool has_gate;           // of the MLP
  bool has_softplus_gates;  // instead of sigmoids
  bool norms_by_head;      // `q_norms` and `k_norms` are layer norms of each head, not one RMS norm of all heads
  bool norms_rotated;      // `q_norm` and `k_norm` follow the rotary embedding
  bool norms_values;       // values are divided by the root mean square of their head
  int32_t layer_input_size;  // numbers that each layer takes of `Step::layer_inputs`; 0: none
  Experts experts;
  Mla mla;
  float norm_eps, embedding_scale;
  float attention_softcap, logit_softcap, qkv_clip;  // 0: none
  float swiglu_limit;      // of the clamped swiglu
  const Layer* layers;
  Norm final_norm;
  Norm embed_norm;         // of the embeddings
  const float* distance_slopes;  // [heads] of the distance of a key to the query; null: there are none
  const float* token_types;  // [types][hidden_padded] added to the embeddings; null: there are none
  const float* positions;  // [position][hidden_padded], added to the embeddings; null: there is none
  const float* head_bias;  // null: there is none
  Matrix embed, lm_head;   // the same panels when tied
  Matrix layer_proj;             // of the embedding, for the inputs of all layers
  const float* layer_proj_norm;  // [layer_input_size]
  AdapterTable adapters;
};

// The place of a layer in a block of the KV cache: its first byte, and the bytes of a KV head.
struct KvPlace {
  size_t offset, head_bytes;
};

// [block][layer][KV head] pieces. Layers that share keys have the same place. The block is outermost because the system allocates pages of 2 MB on
// first touch, which costs milliseconds each: with the layer outermost, a new block would touch a page of every layer.
//   bf16  K [D/2][32 tokens][2], V [16 token pairs][D][2]
//   int8  K [D/4][32 tokens][4] as k + 128, V [16 token pairs][D][2] signed, then 32 K scales and 32 V scales (fp32)
// Keys that hold their values have two parts, the value and the rest, each padded to kKeyPart; D numbers together:
//   bf16  K [16 token pairs][D][2]
//   int8  K [16 token pairs][D][2] signed, then 32 scales of first parts and 32 of second parts (fp32)
struct KvCache {
  uint8_t* base;
  KvKind kind;
  size_t block_bytes;
  const KvPlace* places;  // of each layer

  // Returns the piece of a head in block 0; those of other blocks are whole `block_bytes` after it.
  uint8_t* first_piece(int layer, int head) const { return base + places[layer].offset + head * places[layer].head_bytes; }
  uint8_t* piece(int layer, int block, int head) const { return first_piece(layer, head) + block * block_bytes; }
};

}  // namespace headrace
