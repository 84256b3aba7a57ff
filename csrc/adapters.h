// Slots of LoRA adapters: their memory, and packing into the layout of the kernels.
#pragma once

#include <string>
#include <vector>

#include "layout.h"
#include "memory.h"

namespace headrace {

// The factors of one checkpoint matrix and its place among the outputs of a packed matrix (see `PackSource`).
struct AdapterPart {
  int32_t rank, num_rows, num_columns;
  const float* shrink;  // [rank][num_columns]
  const float* expand;  // [num_rows][rank]
  int32_t first_row;
  bool interleaved;
};

size_t adapter_bytes(const ModelConfig& config, const Limits& limits);

// Each slot holds one adapter of up to `max_adapter_rank`. Slots are written between or during steps that do not use
// them; pages are allocated when a slot is first written.
class AdapterSlots {
 public:
  AdapterSlots(const ModelConfig& config, const Limits& limits);

  // Removes the content of a slot.
  void clear(int32_t slot);

  // Sets the addition to one packed matrix ("qkv", "o", "gate_up" or "down") of a layer. `parts` are in the order of
  // the matrix's outputs; a part with rank 0 is not changed. Throws std::invalid_argument.
  void set(int32_t slot, int32_t layer, const std::string& matrix, const std::vector<AdapterPart>& parts);

  AdapterTable table() const;
  int32_t size() const { return num_slots_; }

 private:
  // A matrix that adapters may change: its place in the memory of a slot, and the parts of each 16 outputs.
  struct Place {
    AdaptedShape shape;
    size_t offset;
    std::vector<uint8_t> parts;
  };
  LowRank& at(int32_t slot, size_t place) { return matrices_[static_cast<size_t>(slot) * places_.size() + place]; }

  const ModelConfig config_;
  int32_t num_slots_, max_rank_;
  size_t slot_bytes_ = 0;
  std::vector<Place> places_;  // [layers][kNumAdapted]
  Arena memory_;
  std::vector<LowRank> matrices_;       // [slots][layers][kNumAdapted]
  std::vector<const uint8_t*> parts_;   // of each place
};

}  // namespace headrace
