// Samples a row of logits: returns a token, its logprob and the best alternatives.
//
// `headrace.inference.runner.sampling` (numpy) is the reference; this file gives the same token for the same input on every CPU:
// the mass of a token is a fixed-point integer, so sums do not depend on their order, and the only transcendental
// function is a polynomial `exp` that both sides compute with the same single-precision operations.
// Nothing here allocates once a SampleScratch exists, and there is no global state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace {

// Sampling parameters of a row, in the layout of `SAMPLING_DTYPE` (inference/runner/step.py), which explains the fields.
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

// Optional inputs of a row; a null pointer means none. Token ids must be in [0, vocab).
struct RowExtras {
  const int32_t* history = nullptr;  // prompt, then answer
  int32_t history_size = 0;
  int32_t num_prompt_tokens = 0;
  const int32_t* bias_ids = nullptr;
  const float* bias_values = nullptr;
  int32_t num_biases = 0;
  const uint32_t* mask = nullptr;  // ceil(vocab / 32) words, bit set = allowed
};

// Throws std::invalid_argument if the target of a row, or a token id of its extras, lies outside the vocabulary.
void check_sampling(const SamplingRow& row, const RowExtras& extras, int32_t vocab);

// The result of a row. `top_ids` and `top_logprobs` have `top_capacity` entries (at least the row's `num_top`); entries
// beyond `num_top` are -1 and NaN.
struct SampleResult {
  int32_t token = -1;  // -1: no token can be drawn, because a logit is NaN or +inf, or because everything is forbidden
  float logprob = 0;   // NaN if not requested
  int32_t rank = 0;    // 1: no token has a larger logit; 0 if the logprob was not requested
  int32_t* top_ids = nullptr;
  float* top_logprobs = nullptr;
  int32_t top_capacity = 0;
};

// Working memory for rows of one vocabulary size; one per thread, allocated once.
class SampleScratch {
 public:
  explicit SampleScratch(int32_t vocab);

  // Bytes of a scratch for `vocab` tokens, for the memory plan.
  static size_t bytes(int32_t vocab);

  std::vector<float> block_max;      // best logit of each block of tokens
  std::vector<uint64_t> block_mass;  // mass of each block of tokens
  std::vector<float> adjusted;       // the row after mask, biases and penalties
  std::vector<int32_t> counts;       // per token, zero between rows
  std::vector<float> selection;      // copy of block_max to partition
  std::vector<int32_t> ids;          // candidates, ascending
  std::vector<uint64_t> masses;      // of the candidates
  std::vector<double> keys;          // of the candidates; smaller keys are kept first
  std::vector<int32_t> order;        // permutation of the candidates
};

// Samples a row of `vocab` logits. With a mask, no target and `num_top` -1 it reads only the allowed logits.
void sample_row(const float* logits, int32_t vocab, const SamplingRow& row, const RowExtras& extras, SampleScratch& scratch,
                SampleResult& result);

}  // namespace headrace
