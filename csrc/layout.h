// The layout of the packed weights of a model, computed once for the loader, the runtime and the memory plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config.h"

namespace headrace {

// A matrix or a vector (fp32, one row) in the packed file. Sizes include padding.
struct Slot {
  std::string name;
  bool is_vector;
  WeightKind kind;
  int32_t num_rows, num_columns;
  size_t offset, num_bytes;
};

struct Layout {
  std::vector<Slot> slots;
  size_t total_bytes = 0;

  const Slot& find(const std::string& name) const;  // throws std::out_of_range
};

// The outputs of the matrices of a layer.
struct LayerSizes {
  int32_t queries, keys, values, gates;  // 0: the layer computes none
  int32_t qkv_padded, attention_padded, intermediate_padded;
};

// The places of the layers in a block of the KV cache.
struct KvLayout {
  std::vector<KvPlace> places;
  size_t block_bytes = 0;  // of all layers
};

size_t panel_bytes(WeightKind kind, int32_t k);
Layout make_layout(const ModelConfig& config);
LayerSizes layer_sizes(const ModelConfig& config, int32_t layer);
KvLayout make_kv_layout(const ModelConfig& config);
size_t kv_block_bytes(const ModelConfig& config);

// Returns the padded dimensions of a model; its pointers are null.
Model make_dimensions(const ModelConfig& config);

}  // namespace headrace
