// Any sizes of a network and of its limits give memory whose parts lie in it, or are refused.
#include <stdexcept>

#include "adapters.h"
#include "layout.h"
#include "models.h"
#include "runtime.h"

using namespace headrace;

namespace {

void expect(bool condition) {
  if (!condition) __builtin_trap();
}

Limits any_limits(FuzzedDataProvider& input) {
  Limits limits{4, 8, 2, 2, 64};
  int32_t* const fields[] = {&limits.num_blocks, &limits.max_step_tokens, &limits.max_step_sequences,
                             &limits.max_step_rows, &limits.max_context_tokens, &limits.max_adapters,
                             &limits.max_adapter_rank, &limits.num_state_slots, &limits.max_draft_tokens};
  for (int i = input.ConsumeIntegralInRange(0, 3); i > 0; i--)
    *fields[input.ConsumeIntegralInRange<size_t>(0, std::size(fields) - 1)] = any_size(input);
  return limits;
}

void check_slots(const Layout& layout) {
  size_t end = 0;
  for (const Slot& slot : layout.slots) {
    expect(slot.num_rows > 0 && slot.num_columns > 0 && slot.offset >= end);
    end = slot.offset + slot.num_bytes;
    expect(end >= slot.offset && end <= layout.total_bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  const Limits limits = any_limits(input);
  const ModelConfig config = any_config(input);
  if (config.num_layers > 64) return -1;  // layers take time in proportion
  try {
    check_slots(make_layout(config));
    const KvLayout kv = make_kv_layout(config);
    for (const KvPlace& place : kv.places) expect(place.offset <= kv.block_bytes);
    workspace_bytes(config, limits, 2);
    adapter_bytes(config, limits);
    state_slot_bytes(config, limits.max_draft_tokens);
    kv_cache_bytes(config, limits);
  } catch (const std::invalid_argument&) {
    return -1;
  }
  return 0;
}
