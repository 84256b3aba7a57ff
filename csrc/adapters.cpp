#include "adapters.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "half.h"
#include "require.h"

namespace headrace {

namespace {

constexpr const char* kAdaptedNames[kNumAdapted] = {"qkv", "o", "gate_up", "down"};
constexpr int kHalf = kPanel / 2;

int32_t padded_rank(int32_t rank) { return static_cast<int32_t>(round_up(static_cast<size_t>(rank), kRankBlock)); }

using AdaptedShapes = std::array<AdaptedShape, kNumAdapted>;

AdaptedShapes shapes_of(const ModelConfig& config, const Model& model, int32_t layer) {
  const LayerSizes sizes = layer_sizes(config, layer);
  const int32_t outputs = static_cast<int32_t>(round_up(config.hidden_size, kPanel)), halves = config.gated_mlp ? 2 : 1;
  const int32_t projections = 1 + (sizes.keys > 0) + (sizes.values > 0) + (sizes.gates > 0);
  AdaptedShapes shapes;
  shapes[kAdaptedQkv] = {projections, model.hidden_padded, sizes.qkv_padded};
  shapes[kAdaptedOutput] = {1, sizes.attention_padded, outputs};
  shapes[kAdaptedGateUp] = {halves, model.hidden_padded, halves * sizes.intermediate_padded};
  shapes[kAdaptedDown] = {1, sizes.intermediate_padded, outputs};
  return shapes;
}

// Bytes of an addition with `rank` to each part.
size_t shrink_bytes(const AdaptedShape& shape, int32_t rank) { return size_t{1} * shape.num_parts * rank * shape.k; }
size_t expand_bytes(const AdaptedShape& shape, int32_t rank) { return shape.num_outputs / kPanel * expand_panel_bytes(rank); }

size_t shape_bytes(const AdaptedShape& shape, int32_t rank) {
  const size_t scales = size_t{1} * shape.num_parts * rank * sizeof(float);
  return round_up(shrink_bytes(shape, rank) + expand_bytes(shape, rank) + scales, 64);
}

// The part of q, k, v and the gates, as far as the layer has them, that an output belongs to.
uint8_t part_of_projection(const LayerSizes& sizes, int32_t output) {
  uint8_t part = 0;
  for (int32_t size : {sizes.queries, sizes.keys, sizes.values}) {
    if (output < size) return part;
    output -= size;
    part += size > 0;
  }
  return sizes.gates > 0 ? part : static_cast<uint8_t>(part - 1);  // the padding has no part of its own
}

// The part that each 16 outputs of a packed matrix belong to.
std::vector<uint8_t> part_of_outputs(const ModelConfig& config, int32_t layer, int32_t matrix, int32_t num_outputs) {
  std::vector<uint8_t> parts(static_cast<size_t>(num_outputs) / kHalf, 0);
  const LayerSizes sizes = layer_sizes(config, layer);
  for (size_t i = 0; i < parts.size(); i++) {
    const int32_t output = static_cast<int32_t>(i) * kHalf;
    if (matrix == kAdaptedGateUp && config.gated_mlp) parts[i] = i % 2;
    if (matrix == kAdaptedQkv) parts[i] = part_of_projection(sizes, output);
  }
  return parts;
}

float peak_of(const float* values, int32_t count, int32_t pitch) {
  float peak = 0;
  for (int32_t i = 0; i < count; i++) peak = std::max(peak, std::abs(values[static_cast<size_t>(i) * pitch]));
  return peak;
}

// The nearest step, 0 for NaN; `scale` may have been rounded, so that the peak lies a little above the last step.
int8_t step_of(float value, float scale) {
  const float step = std::nearbyint(value / scale);
  return scale > 0 && !std::isnan(step) ? static_cast<int8_t>(std::clamp(step, -127.0f, 127.0f)) : int8_t{0};
}

// [rank block][K / 64][8 ranks][64 inputs], plus 128: the kernel reads one stream, and 8 ranks share the load of an
// input. The scale of a rank is that of its row here times its largest number in the other factor, `expand_peaks`.
void pack_shrink(const AdapterPart& part, const std::vector<float>& expand_peaks, int32_t first_rank, int32_t k,
                 uint8_t* out, float* rank_scales) {
  for (int32_t r = 0; r < part.rank; r++) {
    const int32_t rank = first_rank + r;
    uint8_t* block = out + static_cast<size_t>(rank / kRankBlock) * kRankBlock * k + rank % kRankBlock * kDepth;
    const float* row = part.shrink + static_cast<size_t>(r) * part.num_columns;
    const float scale = peak_of(row, part.num_columns, 1) / 127;
    for (int32_t i = 0; i < part.num_columns; i++) {
      block[i / kDepth * kRankBlock * kDepth + i % kDepth] = static_cast<uint8_t>(step_of(row[i], scale) + 128);
    }
    rank_scales[rank] = scale * expand_peaks[static_cast<size_t>(r)];
  }
}

// [outputs / 32]([rank / 2][32 outputs][2 ranks], scales). Numbers are relative to the peak of their rank, so that ranks of
// different magnitude share the scale of an output.
void pack_expand(const AdapterPart& part, const std::vector<float>& peaks, int32_t padded, int8_t* out) {
  std::vector<float> relative(static_cast<size_t>(part.rank));
  for (int32_t i = 0; i < part.num_rows; i++) {
    const int32_t output = part.first_row + (part.interleaved ? i / kHalf * kPanel + i % kHalf : i);
    int8_t* panel = out + static_cast<size_t>(output / kPanel) * expand_panel_bytes(padded) + output % kPanel * 2;
    const float* row = part.expand + static_cast<size_t>(i) * part.rank;
    for (size_t r = 0; r < relative.size(); r++) relative[r] = peaks[r] > 0 ? row[r] / peaks[r] : 0;
    const uint16_t half = float_to_half(peak_of(relative.data(), part.rank, 1) / 127);
    const float scale = half_to_float(reinterpret_cast<const uint8_t*>(&half));
    for (int32_t r = 0; r < part.rank; r++) {
      panel[r / 2 * 2 * kPanel + r % 2] = step_of(relative[static_cast<size_t>(r)], scale);
    }
    std::memcpy(panel + static_cast<size_t>(padded) * kPanel, &half, sizeof half);
  }
}

void check_part(const AdapterPart& part, const AdaptedShape& shape, int32_t max_rank) {
  require(part.rank >= 0 && part.rank <= max_rank,
          "the rank is " + std::to_string(part.rank) + "; expected at most " + std::to_string(max_rank));
  if (part.rank == 0) return;
  const int64_t last = part.num_rows - 1, output = part.first_row + (part.interleaved ? last / kHalf * kPanel + last % kHalf : last);
  require(part.num_rows > 0 && part.first_row >= 0 && part.first_row % (part.interleaved ? kHalf : 1) == 0 &&
              output < shape.num_outputs && part.num_columns > 0 && part.num_columns <= shape.k,
          "the factors of an adapter do not fit into the matrix");
}

}  // namespace

size_t adapter_bytes(const ModelConfig& config, const Limits& limits) {
  if (limits.max_adapters == 0) return 0;
  const Model model = make_dimensions(config);
  size_t slot = 0;
  for (int32_t layer = 0; layer < config.num_layers; layer++) {
    for (const AdaptedShape& shape : shapes_of(config, model, layer))
      slot += shape_bytes(shape, padded_rank(limits.max_adapter_rank));
  }
  return slot * static_cast<size_t>(limits.max_adapters);
}

AdapterSlots::AdapterSlots(const ModelConfig& config, const Limits& limits)
    : config_(config), num_slots_(limits.max_adapters), max_rank_(padded_rank(limits.max_adapter_rank)),
      memory_(adapter_bytes(config, limits)) {
  const Model model = make_dimensions(config);
  for (int32_t layer = 0; layer < config.num_layers; layer++) {
    const AdaptedShapes shapes = shapes_of(config, model, layer);
    for (int32_t i = 0; i < kNumAdapted; i++) {
      places_.push_back({shapes[i], slot_bytes_, part_of_outputs(config, layer, i, shapes[i].num_outputs)});
      slot_bytes_ += shape_bytes(shapes[i], max_rank_);
    }
  }
  for (const Place& place : places_) parts_.push_back(place.parts.data());
  matrices_.resize(static_cast<size_t>(num_slots_) * places_.size(), LowRank{});
}

void AdapterSlots::clear(int32_t slot) {
  require(slot >= 0 && slot < num_slots_, "there is no slot " + std::to_string(slot));
  std::fill_n(&at(slot, 0), places_.size(), LowRank{});
}

void AdapterSlots::set(int32_t slot, int32_t layer, const std::string& matrix, const std::vector<AdapterPart>& parts) {
  const auto* name = std::find(std::begin(kAdaptedNames), std::end(kAdaptedNames), matrix);
  const int32_t index = static_cast<int32_t>(name - std::begin(kAdaptedNames));
  require(slot >= 0 && slot < num_slots_ && layer >= 0 && layer < config_.num_layers && index < kNumAdapted,
          "there is no matrix " + matrix + " in layer " + std::to_string(layer) + " of slot " + std::to_string(slot));
  require(index < kAdaptedGateUp || !config_.has_experts(layer), "experts cannot be adapted");
  const size_t place = static_cast<size_t>(layer) * kNumAdapted + index;
  const AdaptedShape& shape = places_[place].shape;
  require(parts.size() == static_cast<size_t>(shape.num_parts), "the parts of the matrix and of the adapter differ");
  int32_t rank = 0;
  for (const AdapterPart& part : parts) {
    check_part(part, shape, max_rank_);
    rank = std::max(rank, padded_rank(part.rank));
  }
  if (rank == 0) return;
  auto* shrink = reinterpret_cast<uint8_t*>(memory_.data() + slot * slot_bytes_ + places_[place].offset);
  auto* expand = reinterpret_cast<int8_t*>(shrink + shrink_bytes(shape, rank));
  auto* rank_scales = reinterpret_cast<float*>(expand + expand_bytes(shape, rank));
  std::memset(shrink, 0, shape_bytes(shape, rank));
  std::memset(shrink, 128, shrink_bytes(shape, rank));
  for (size_t i = 0; i < parts.size(); i++) {
    const AdapterPart& part = parts[i];
    std::vector<float> peaks;
    for (int32_t r = 0; r < part.rank; r++) peaks.push_back(peak_of(part.expand + r, part.num_rows, part.rank));
    pack_shrink(part, peaks, static_cast<int32_t>(i) * rank, shape.k, shrink, rank_scales);
    pack_expand(part, peaks, rank, expand);
  }
  at(slot, place) = {rank, shape.num_parts * rank, shrink, expand, rank_scales};
}

AdapterTable AdapterSlots::table() const {
  AdapterTable table{};
  table.num_layers = config_.num_layers;
  table.matrices = matrices_.data();
  table.parts = parts_.data();
  return table;
}

}  // namespace headrace
