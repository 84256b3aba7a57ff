#include <algorithm>

#include "require.h"
#include "sampling.h"

namespace headrace {

void check_sampling(const SamplingRow& row, const RowExtras& extras, int32_t vocab) {
  const auto are_tokens = [&](const int32_t* ids, int32_t count) {
    return std::all_of(ids, ids + count, [&](int32_t id) { return id >= 0 && id < vocab; });
  };
  require(row.target < vocab, "a target is not in the vocabulary");
  require(are_tokens(extras.history, extras.history_size), "a history has a token id that is not in the vocabulary");
  require(extras.num_prompt_tokens >= 0 && extras.num_prompt_tokens <= extras.history_size,
          "num_prompt_tokens of a history lies outside its tokens");
  require(are_tokens(extras.bias_ids, extras.num_biases), "a bias names a token id that is not in the vocabulary");
}

}  // namespace headrace
