// Plain structures shared by the runtime and the kernels: a step, its working memory and the kernels that run it.
// The letters and rules of model.h hold here too.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model.h"
#include "profile.h"
#include "sampling.h"

namespace headrace {

// Inputs of a matrix. bf16: [K/32][rows][32], or [K/16][rows][16] of their values in fp32 where the ISA does not multiply bf16;
// `values` has room for both. Otherwise an input is scale * (first + second / kTermRatio), signed bytes in
// [K/64][rows][terms][64]: W8A8 and W4A8 have only the first term. So the rows of a tile are a constant number of bytes
// apart. Scales and sums are [rows][groups], biases [rows][terms][groups], with groups of 64 inputs for W8, 32 for W4.
struct Activations {
  int8_t* values;
  float* scales;
  int32_t* biases;  // W8: kW8Bias * sum of the bytes of the group; 2 and 3 bits: the sums of both halves, as int16
  float* sums;      // W4: sum of the inputs of the group, as quantized
  size_t num_rows;  // pitch
  int32_t groups_pitch, terms;
};

// The best logit of each vector lane, its position, and a number that is NaN if any logit is not finite.
struct BestLanes {
  float values[16];
  int32_t ids[16];
  float checks[16];
};

// Temporaries of layers with experts. A place is one row of one expert; places are sorted by expert. The activations of
// an expert lie together, as if it had a workspace of its own with as many rows as it has places.
struct ExpertWorkspace {
  Activations rows;       // [T], each row on its own
  float* scores;          // [T][score_pitch]
  int32_t* chosen;        // [T][slots] experts
  float* shares;          // [T][slots] their factors
  int32_t* starts;        // [experts + 1] first place
  int32_t* places;        // [T * slots]: index into `chosen`
  int32_t* active;        // [experts] those that have rows, most rows first
  int32_t* num_active;
  Activations inputs, gated_inputs;  // [T * slots] by place
  float* outputs;         // [T][slots][io_padded]
  float* beside;          // [T][hidden_padded] the output of the dense MLP beside experts, normed
  float* latent;          // [T][io_padded] inputs of the routed experts, then their sum; null without a latent input
};

// Temporaries of latent attention.
struct MlaWorkspace {
  float* queries;      // [scratch_rows][query_pitch]
  // Queries that meet latents, which the sums of latents replace: of all rows and heads if the step is split by columns,
  // else [threads][thread_rows] of one head
  float* absorbed;
  Activations inputs;  // [threads][thread_rows] of k_b or v_b of a head
  int32_t query_pitch, thread_rows;
};

struct Workspace {
  float* x;         // [T][hidden_padded] the residual stream
  float* qkv;       // [T][qkv_padded], in state layers a row of these
  float* gates;     // [T][gates_pitch] of the scans of state layers
  float* scan;      // [threads][scan_scratch]
  float* normed;    // [scratch_rows][hidden_padded] of rows that are also read unquantized, by a router or for gates
  float* wide;      // [scratch_rows][attention_padded] the output of attention
  float* gated;     // [threads][gated_rows][kDepth]
  float* projected; // [scratch_rows][hidden_padded], what a norm or the end of the layer still has to take
  Activations inputs, gated_inputs;  // [scratch_rows] of all matrices but `down`; of `down`
  float* logits;    // [min(T, kLogitRows)][vocab_padded]
  float* layer_products;   // [scratch_rows][layers * layer_input_size]
  float* row_buffers;      // [threads][hidden_padded]
  BestLanes* best;         // [threads][kLogitRows]
  int32_t* row_sequence;   // [T]
  int32_t* row_position;   // [T]
  int32_t* row_adapter;    // [T] slots, or -1
  int16_t* adapter_inner;       // [scratch_rows][adapter_inner_pitch]
  float* adapter_inner_scales;  // [scratch_rows][adapter_inner_pitch / kRankBlock]
  Activations adapter_inputs;   // [threads], of bf16 base weights
  int32_t adapter_inner_pitch;
  int32_t scratch_rows, gated_rows;
  ExpertWorkspace experts;
  MlaWorkspace mla;
};

struct StepOutputs {
  int32_t* token_ids;
  float* logprobs;
  int32_t* ranks;
  int32_t* top_ids;      // [rows][top_capacity]
  float* top_logprobs;
  int32_t top_capacity;
};

// A state to keep: after so many tokens of a sequence of the step, counted from the first replayed one.
struct Snapshot {
  int32_t sequence, tokens, slot;
};

// The slots of the sequences of a step; `StateStep` of inference/runner/step.py says what each means.
struct StateStep {
  const int32_t *read, *write, *replayed, *certain;  // null for models without state layers
  const Snapshot* snapshots;                         // in ascending order
  int32_t num_snapshots;
};

struct Step {
  const int32_t *token_ids, *query_starts, *context_lens, *block_tables, *rows;
  const int32_t* token_types;  // of each token; null: all are 0
  const int32_t* adapters;  // slot of each sequence, or -1; null if no sequence has an adapter
  StateStep states;
  const int32_t* hidden_rows;  // tokens whose final hidden states are returned; none of them is in `rows`
  float* layer_inputs;  // [tokens][layers][layer_input_size], at first rows of a table; null if layers have no inputs
  int32_t num_tokens, num_sequences, num_rows, num_hidden_rows, table_width;
  const SamplingRow* sampling;
  const RowExtras* extras;
  StepOutputs out;
  float* all_logits;  // [rows][vocab] instead of sampling, or null
  float* hidden;      // [hidden rows][hidden] after the final norm
  float* all_scores;  // [layers][tokens][experts] of the routers, untouched in dense layers; or null
};

class Team;

struct StepContext {
  const Model* model;
  const KvCache* kv;
  const StateCache* states;
  const Workspace* work;
  const Step* step;
  int32_t first_layer, end_layer;  // before the first layer of the model tokens are embedded, after its last one are the outputs
  Team* team;
  SampleScratch* const* scratch;  // one per thread
  PhaseTimes* profile;            // likewise, or null
};

// Multiplies rows [first_row, first_row + num_rows) of `inputs` with panels [panel_begin, panel_end) of `matrix`.
// Output `column` of row i goes to out[i * out_pitch + column % out_pitch].
struct Product {
  const Matrix* matrix;
  const Activations* inputs;
  int first_row, num_rows, panel_begin, panel_end;
  float* out;
  size_t out_pitch;
};

// Single kernels and peak rates of the machine, for benchmarks.
struct Probes {
  void (*quantize)(WeightKind kind, const float* x, int k, const Activations& inputs, int row);
  void (*multiply)(const Product& product);
  // Runs the dot product instruction of `kind` on registers only; returns the number of operations.
  int64_t (*compute)(WeightKind kind, int64_t num_rounds);
  void (*read)(const uint8_t* data, size_t num_bytes);
};

struct Kernels {
  const char* name;
  bool has_native_bf16;
  void (*run_step)(const StepContext& context, int thread);  // called by every thread of the team
  const Probes* probes;
};

}  // namespace headrace
