#include "sampling.h"

#include <algorithm>
#include <limits>

namespace headrace {

namespace {
constexpr int32_t kBlock = 64;
}

SampleScratch::SampleScratch(int32_t vocab)
    : block_max((vocab + kBlock - 1) / kBlock), block_mass(block_max.size()), counts(vocab), selection(block_max.size()),
      ids(vocab), masses(vocab), keys(vocab), order(vocab) {}

size_t SampleScratch::bytes(int32_t vocab) {
  size_t blocks = (static_cast<size_t>(vocab) + kBlock - 1) / kBlock;
  return blocks * (2 * sizeof(float) + sizeof(uint64_t)) +
         static_cast<size_t>(vocab) * (3 * sizeof(int32_t) + sizeof(uint64_t) + sizeof(double));
}

// Greedy only until the sampler is complete.
void sample_row(float* logits, int32_t vocab, const SamplingRow& row, const RowExtras&, SampleScratch&,
                SampleResult& result) {
  result.token = row.target >= 0 ? row.target : static_cast<int32_t>(std::max_element(logits, logits + vocab) - logits);
  result.logprob = std::numeric_limits<float>::quiet_NaN();
  std::fill_n(result.top_ids, result.top_capacity, -1);
  std::fill_n(result.top_logprobs, result.top_capacity, result.logprob);
}

}  // namespace headrace
