// Any logits and any sampling arguments give a token of the vocabulary, or none, or are refused.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "sampling.h"

using namespace headrace;

namespace {

constexpr int32_t kMaxVocab = 400, kMaxTop = 1000;
constexpr float kFloats[] = {0.0f, 1.0f, -1.0f, 0.5f, 1e-30f, 1e30f, 100.0f, INFINITY, -INFINITY, NAN};
constexpr int32_t kInts[] = {0, 1, -1, 2, 20, 40, INT32_MAX, INT32_MIN};

float any_float(FuzzedDataProvider& input) {
  if (input.ConsumeBool()) return input.PickValueInArray(kFloats);
  const auto bits = input.ConsumeIntegral<uint32_t>();
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

int32_t any_int(FuzzedDataProvider& input) {
  return input.ConsumeBool() ? input.PickValueInArray(kInts) : input.ConsumeIntegral<int32_t>();
}

std::vector<int32_t> some_ids(FuzzedDataProvider& input, int32_t vocab) {
  std::vector<int32_t> ids(input.ConsumeIntegralInRange<size_t>(0, 20));
  for (int32_t& id : ids) id = input.ConsumeProbability<float>() < 0.95f ? input.ConsumeIntegralInRange(0, vocab - 1) : any_int(input);
  return ids;
}

SamplingRow any_row(FuzzedDataProvider& input) {
  SamplingRow row{};
  row.seed = input.ConsumeIntegral<uint64_t>();
  row.position = input.ConsumeIntegral<uint64_t>();
  for (float* field : {&row.temperature, &row.top_p, &row.min_p, &row.typical_p, &row.repetition_penalty,
                       &row.presence_penalty, &row.frequency_penalty})
    *field = any_float(input);
  row.top_k = any_int(input);
  row.num_top = any_int(input);
  row.target = any_int(input);
  return row;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  const int32_t vocab = input.ConsumeIntegralInRange(1, kMaxVocab);
  const SamplingRow row = any_row(input);
  const std::vector<int32_t> history = some_ids(input, vocab), biased = some_ids(input, vocab);
  std::vector<float> biases(biased.size());
  for (float& bias : biases) bias = any_float(input);
  std::vector<uint32_t> mask(static_cast<size_t>(vocab + 31) / 32);
  for (uint32_t& word : mask) word = input.ConsumeIntegral<uint32_t>();
  RowExtras extras;
  extras.history = history.data();
  extras.history_size = static_cast<int32_t>(history.size());
  extras.num_prompt_tokens = input.ConsumeBool() ? extras.history_size / 2 : any_int(input);
  extras.bias_ids = biased.data();
  extras.bias_values = biases.data();
  extras.num_biases = static_cast<int32_t>(biased.size());
  if (input.ConsumeBool()) extras.mask = mask.data();
  std::vector<float> logits(static_cast<size_t>(vocab));
  const bool is_finite = input.ConsumeBool();
  const std::vector<uint8_t> rest = input.ConsumeRemainingBytes<uint8_t>();
  if (!rest.empty())
    for (size_t i = 0; i < logits.size(); i++) logits[i] = static_cast<float>(static_cast<int8_t>(rest[i % rest.size()]));
  if (!is_finite && !rest.empty()) std::memcpy(logits.data(), rest.data(), std::min(rest.size(), logits.size() * sizeof(float)));
  if (row.num_top > kMaxTop) return -1;  // what Python allocates
  try {
    check_sampling(row, extras, vocab);
  } catch (const std::invalid_argument&) {
    return -1;
  }
  SampleScratch scratch(vocab);
  const int32_t num_top = std::max(row.num_top, 0);
  std::vector<int32_t> top_ids(static_cast<size_t>(num_top));
  std::vector<float> top_logprobs(top_ids.size());
  SampleResult result{-1, 0, 0, top_ids.data(), top_logprobs.data(), num_top};
  sample_row(logits.data(), vocab, row, extras, scratch, result);
  if (result.token < -1 || result.token >= vocab) __builtin_trap();
  for (const int32_t id : top_ids)
    if (id < -1 || id >= vocab) __builtin_trap();
  return 0;
}
