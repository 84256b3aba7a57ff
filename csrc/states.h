// The states of sequences, of which models with state layers keep one each beside their KV cache.
#pragma once

#include <vector>

#include "config.h"
#include "memory.h"
#include "step.h"

namespace headrace {

// Returns the sizes of a layer's state, without places and weights.
StateLayer state_sizes(const ModelConfig& config, int32_t layer);

// Returns the bytes of a slot: the states of all layers, and what each keeps of the draft tokens of a sequence. 0: the
// model has no state layers.
size_t state_slot_bytes(const ModelConfig& config, int32_t max_draft_tokens);

// The memory of all slots. They are written by the kernels; only what no kernel sees is kept here.
class StateSlots {
 public:
  StateSlots(const ModelConfig& config, const Limits& limits);

  // Sets the places in a slot of a layer's state.
  void connect(StateLayer& layer, int32_t index) const;
  StateCache cache() const;
  size_t bytes() const { return static_cast<size_t>(num_slots_) * slot_bytes_; }
  // [slot][slot_bytes]. A slot that is written from outside must not be replayed.
  uint8_t* data() const { return memory_.data(); }
  int32_t num_slots() const { return num_slots_; }
  size_t slot_bytes() const { return slot_bytes_; }

  // Throws std::invalid_argument if the step would read or write the state of another sequence, or what is not there.
  void check(const Step& step) const;
  // Notes how many draft tokens each slot holds after a step.
  void finish(const Step& step);

 private:
  void check_sequence(const Step& step, int32_t sequence) const;
  void check_snapshots(const Step& step) const;
  void check_writes(const StateStep& states, int32_t num_sequences) const;

  std::vector<StateLayer> places_;  // of each layer
  int32_t num_slots_, max_drafts_;
  size_t slot_bytes_;
  Arena memory_;
  std::vector<int32_t> num_drafts_;  // in each slot
};

}  // namespace headrace
