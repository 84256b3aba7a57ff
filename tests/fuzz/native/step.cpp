// Any weights, adapters and arguments of steps, on any small network, give tokens of the vocabulary, or are refused.
#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "isa.h"
#include "models.h"
#include "runtime.h"

using namespace headrace;

namespace {

constexpr size_t kMaxBytes = 4 << 20;  // of weights and of working memory
constexpr int32_t kMaxTokens = 24, kMaxSequences = 3, kContext = 96;

// The bytes of the input, repeated.
void fill(uint8_t* out, size_t size, const std::vector<uint8_t>& bytes) {
  for (size_t i = 0; i < size && !bytes.empty(); i++) out[i] = bytes[i % bytes.size()];
}

int32_t mostly(FuzzedDataProvider& input, int32_t least, int32_t most) {
  return input.ConsumeProbability<float>() < 0.97f ? input.ConsumeIntegralInRange(least, most) : any_size(input);
}

std::vector<int32_t> ints(FuzzedDataProvider& input, size_t count, int32_t least, int32_t most) {
  std::vector<int32_t> values(count);
  for (int32_t& value : values) value = mostly(input, least, most);
  return values;
}

// The arrays that a step points to.
struct Arrays {
  std::vector<int32_t> tokens, types, starts, contexts, tables, rows, hidden_rows, adapters, read, write, replayed, certain;
  std::vector<Snapshot> snapshots;
  std::vector<SamplingRow> sampling;
  std::vector<RowExtras> extras;
  std::vector<int32_t> chosen, ranks, top_ids;
  std::vector<float> logprobs, top_logprobs, hidden, layer_inputs;
};

void add_sequences(FuzzedDataProvider& input, const ModelConfig& config, const Limits& limits, Arrays& arrays) {
  const auto count = static_cast<size_t>(input.ConsumeIntegralInRange(1, kMaxSequences));
  arrays.starts = {0};
  for (size_t s = 0; s < count; s++) {
    arrays.starts.push_back(arrays.starts.back() + input.ConsumeIntegralInRange(1, kMaxTokens / kMaxSequences));
    arrays.contexts.push_back(config.causal && input.ConsumeBool() ? mostly(input, 0, kContext / 2) : 0);
  }
  arrays.tokens = ints(input, static_cast<size_t>(arrays.starts.back()), 0, config.vocab_size - 1);
  arrays.tables = ints(input, count * (kContext / kBlockTokens), 0, limits.num_blocks - 1);
  if (limits.max_adapters > 0) arrays.adapters = ints(input, count, -1, limits.max_adapters - 1);
  if (config.num_token_types > 0) arrays.types = ints(input, arrays.tokens.size(), 0, config.num_token_types - 1);
  for (size_t s = 0; limits.num_state_slots > 0 && s < count; s++) {
    arrays.read.push_back(arrays.contexts[s] > 0 ? mostly(input, 0, limits.num_state_slots - 1) : -1);
    arrays.write.push_back(mostly(input, 0, limits.num_state_slots - 1));
    arrays.replayed.push_back(mostly(input, 0, 1));
    arrays.certain.push_back(mostly(input, 1, arrays.starts[s + 1] - arrays.starts[s]));
  }
  if (limits.num_state_slots > 0 && input.ConsumeBool())
    arrays.snapshots.push_back({mostly(input, 0, 1), mostly(input, 1, 2), mostly(input, 0, limits.num_state_slots - 1)});
}

void add_rows(FuzzedDataProvider& input, const ModelConfig& config, Arrays& arrays) {
  for (size_t i = 0; i < arrays.tokens.size(); i++) {
    const int kind = input.ConsumeIntegralInRange(0, 3);
    if (kind == 1) arrays.rows.push_back(static_cast<int32_t>(i));
    if (kind == 2) arrays.hidden_rows.push_back(static_cast<int32_t>(i));
  }
  for (size_t i = 0; i < arrays.rows.size(); i++) {
    SamplingRow row{};
    row.temperature = input.PickValueInArray(kNumbers);
    row.top_p = row.repetition_penalty = row.typical_p = 1.0f;
    row.num_top = input.ConsumeIntegralInRange(-1, std::min(config.vocab_size, 4));
    row.target = -1;
    arrays.sampling.push_back(row);
  }
  arrays.extras.resize(arrays.rows.size());
  arrays.chosen.resize(arrays.rows.size());
  arrays.ranks.resize(arrays.rows.size());
  arrays.logprobs.resize(arrays.rows.size());
  arrays.top_ids.resize(arrays.rows.size() * 4);
  arrays.top_logprobs.resize(arrays.rows.size() * 4);
  arrays.hidden.resize(arrays.hidden_rows.size() * static_cast<size_t>(config.hidden_size));
  arrays.layer_inputs.resize(arrays.tokens.size() * static_cast<size_t>(config.num_layers * config.layer_input_size));
}

Step step_of(const Limits& limits, Arrays& arrays) {
  Step step{};
  step.token_ids = arrays.tokens.data();
  step.query_starts = arrays.starts.data();
  step.context_lens = arrays.contexts.data();
  step.block_tables = arrays.tables.data();
  step.rows = arrays.rows.data();
  step.token_types = arrays.types.empty() ? nullptr : arrays.types.data();
  step.adapters = arrays.adapters.empty() ? nullptr : arrays.adapters.data();
  if (limits.num_state_slots > 0) {
    step.states = {arrays.read.data(), arrays.write.data(), arrays.replayed.data(), arrays.certain.data(),
                   arrays.snapshots.data(), static_cast<int32_t>(arrays.snapshots.size())};
  }
  step.hidden_rows = arrays.hidden_rows.data();
  step.layer_inputs = arrays.layer_inputs.empty() ? nullptr : arrays.layer_inputs.data();
  step.num_tokens = static_cast<int32_t>(arrays.tokens.size());
  step.num_sequences = static_cast<int32_t>(arrays.contexts.size());
  step.num_rows = static_cast<int32_t>(arrays.rows.size());
  step.num_hidden_rows = static_cast<int32_t>(arrays.hidden_rows.size());
  step.table_width = kContext / kBlockTokens;
  step.sampling = arrays.sampling.data();
  step.extras = arrays.extras.data();
  step.out = {arrays.chosen.data(), arrays.logprobs.data(), arrays.ranks.data(), arrays.top_ids.data(),
              arrays.top_logprobs.data(), 4};
  step.hidden = arrays.hidden.data();
  return step;
}

void set_adapter(FuzzedDataProvider& input, Runtime& runtime, const std::vector<uint8_t>& bytes) {
  static const char* const names[] = {"qkv", "o", "gate_up", "down"};
  std::vector<float> numbers(64 * 1024);
  fill(reinterpret_cast<uint8_t*>(numbers.data()), numbers.size() * sizeof(float), bytes);
  std::vector<AdapterPart> parts(input.ConsumeIntegralInRange<size_t>(0, 4));
  for (AdapterPart& part : parts) {
    part = {mostly(input, 0, 8), mostly(input, 1, 64), mostly(input, 1, 64), numbers.data(), numbers.data(),
            mostly(input, 0, 64), input.ConsumeBool()};
    if (int64_t{1} * std::max(part.rank, 0) * std::max({part.num_rows, part.num_columns, 0}) > 64 * 1024) return;
  }
  try {
    runtime.adapters().set(mostly(input, 0, 1), mostly(input, 0, 1), input.PickValueInArray(names), parts);
  } catch (const std::invalid_argument&) {
  }
}

Limits usual_limits(FuzzedDataProvider& input, const ModelConfig& config) {
  Limits limits{4, kMaxTokens, kMaxSequences, kMaxTokens, kContext};
  if (input.ConsumeBool()) limits.max_adapters = 2, limits.max_adapter_rank = 8;
  if (state_slot_bytes(config, 2) > 0) limits.num_state_slots = 3, limits.max_draft_tokens = 2;
  return limits;
}

void run(FuzzedDataProvider& input) {
  const ModelConfig config = any_config(input);
  if (config.num_layers > 8) return;
  const Limits limits = usual_limits(input, config);
  const size_t weight_bytes = make_layout(config).total_bytes;
  if (weight_bytes > kMaxBytes || kv_cache_bytes(config, limits) > kMaxBytes ||
      adapter_bytes(config, limits) + workspace_bytes(config, limits, 1) > 4 * kMaxBytes ||
      state_slot_bytes(config, limits.max_draft_tokens) > kMaxBytes)
    return;
  Arrays arrays;
  add_sequences(input, config, limits, arrays);
  add_rows(input, config, arrays);
  auto weights = std::make_shared<Arena>(weight_bytes);
  const int num_adapters = limits.max_adapters > 0 ? input.ConsumeIntegralInRange(0, 3) : 0;
  std::vector<uint8_t> changes = input.ConsumeBytes<uint8_t>(input.remaining_bytes() / 2);
  fill(weights->data(), weight_bytes, input.ConsumeRemainingBytes<uint8_t>());
  for (const std::string& isa : available_isas()) {
    Runtime runtime(config, limits, weights, 1, isa);
    FuzzedDataProvider more(changes.data(), changes.size());
    for (int i = 0; i < num_adapters; i++) set_adapter(more, runtime, changes);
    runtime.execute(step_of(limits, arrays));
    for (const int32_t token : arrays.chosen)
      if (token < -1 || token >= config.vocab_size) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  try {
    run(input);
  } catch (const std::invalid_argument&) {
    return -1;
  }
  return 0;
}
