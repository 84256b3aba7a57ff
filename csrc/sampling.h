// Turns one row of logits into a token, its logprob and the best alternatives.
//
// `headrace.runner.sampling` (numpy) says what is right; this file gives the same token for the same input, on every CPU:
// the mass of a token is a fixed-point integer, so sums do not depend on their order, and the only transcendental
// function is a polynomial `exp` that both sides compute with the same single-precision operations.
// Nothing here allocates once a SampleScratch exists, and nothing is global.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace {

// How one row becomes a token: the layout of `SAMPLING_DTYPE` in runner/step.py, which explains the fields.
struct SamplingRow {
  uint64_t seed;
  uint64_t position;
  float temperature;
  float top_p;
  float min_p;
  float typical_p;
  float repetition_penalty;
  float presence_penalty;
  float frequency_penalty;
  int32_t top_k;
  int32_t num_top;
  int32_t target;
};
static_assert(sizeof(SamplingRow) == 56, "SamplingRow must have the layout of SAMPLING_DTYPE");

// The parts of a step that few rows have; a null pointer means "none". Token ids must lie in [0, vocab).
struct RowExtras {
  const int32_t* history = nullptr;  // prompt, then answer
  int32_t history_size = 0;
  int32_t num_prompt_tokens = 0;
  const int32_t* bias_ids = nullptr;
  const float* bias_values = nullptr;
  int32_t num_biases = 0;
  const uint32_t* mask = nullptr;  // ceil(vocab / 32) words, bit set = allowed
};

// Where the answer of one row goes. `top_ids` and `top_logprobs` have room for `top_capacity` alternatives
// (at least the row's `num_top`); what the row did not ask for is filled with -1 and NaN.
struct SampleResult {
  int32_t token = -1;  // -1: no token can be drawn, because a logit is NaN or +inf, or because everything is forbidden
  float logprob = 0;   // NaN when not asked for
  int32_t* top_ids = nullptr;
  float* top_logprobs = nullptr;
  int32_t top_capacity = 0;
};

// Working memory for rows of one vocabulary size; one per thread, made once.
class SampleScratch {
 public:
  explicit SampleScratch(int32_t vocab);

  // What a scratch for `vocab` tokens takes, for the memory plan.
  static size_t bytes(int32_t vocab);

  std::vector<float> block_max;      // best logit of each block of tokens
  std::vector<uint64_t> block_mass;  // mass of each block of tokens
  std::vector<float> adjusted;       // the row after mask, biases and penalties
  std::vector<int32_t> counts;       // per token, zero between rows
  std::vector<float> selection;      // copy of block_max to partition
  std::vector<int32_t> ids;          // candidates, ascending
  std::vector<uint64_t> masses;      // of the candidates
  std::vector<double> keys;          // of the candidates: the smaller, the sooner kept
  std::vector<int32_t> order;        // permutation of the candidates
};

// Samples one row of `vocab` logits. With a mask, no target and `num_top` -1 it reads the allowed ones only.
void sample_row(const float* logits, int32_t vocab, const SamplingRow& row, const RowExtras& extras, SampleScratch& scratch,
                SampleResult& result);

}  // namespace headrace
