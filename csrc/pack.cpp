#include "pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "half.h"
#include "pack_low_bits.h"
#include "pack_w4.h"
#include "parallel.h"
#include "require.h"

namespace headrace {

namespace {

constexpr float kRoundingMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer

// |x| < 2^22
int32_t round_to_int(float x) { return static_cast<int32_t>(float_to_bits(x + kRoundingMagic) - 0x4b400000u); }

// Writes a decoded row (padded with zeros to `k`) to lane `lane` of a panel.
void pack_bf16(const float* row, int32_t k, int lane, uint8_t* panel) {
  auto* out = reinterpret_cast<uint16_t*>(panel);
  for (int32_t i = 0; i < k; i++) out[(i / 2) * 2 * kPanel + lane * 2 + i % 2] = float_to_bf16(row[i]);
}

float largest_of(const float* values, int32_t count) {
  float largest = 0;
  for (int32_t i = 0; i < count; i++) largest = std::max(largest, std::fabs(values[i]));
  return largest;
}

void write_w8_group(const int32_t* values, uint16_t scale, int lane, uint8_t* group) {
  for (int i = 0; i < kDepth; i++)
    group[i / 4 * 4 * kPanel + lane * 4 + i % 4] = static_cast<uint8_t>(values[i] + 128);
  std::memcpy(group + kW8Bytes + lane * sizeof scale, &scale, sizeof scale);
}

void write_w8_output_scale(float scale, int32_t k, int lane, uint8_t* panel) {
  std::memcpy(panel + static_cast<size_t>(k / kDepth) * kW8GroupBytes + lane * sizeof scale, &scale, sizeof scale);
}

// The scale of the output is a power of two, so that the scales of its groups are normal halves up to 1.
void pack_w8(const float* row, int32_t k, int lane, uint8_t* panel) {
  const float largest = largest_of(row, k);
  int exponent = 0;
  std::frexp(largest / 127.0f, &exponent);
  const float output_scale = std::isinf(largest) ? largest : std::ldexp(1.0f, exponent);
  for (int32_t g = 0; g < k / kDepth; g++, row += kDepth) {
    const uint16_t scale = float_to_half(largest_of(row, kDepth) / 127.0f / output_scale);
    const float step = half_to_float(reinterpret_cast<const uint8_t*>(&scale)) * output_scale;
    const float inverse = step > 0 ? 1.0f / step : 0.0f;
    int32_t values[kDepth];
    for (int i = 0; i < kDepth; i++) values[i] = round_to_int(std::clamp(row[i] * inverse, -127.0f, 127.0f));
    write_w8_group(values, scale, lane, panel + g * kW8GroupBytes);
  }
  write_w8_output_scale(output_scale, k, lane, panel);
}

// Copies values and scale of an I8 row.
void copy_w8(const uint8_t* row, int32_t num_columns, int32_t k, int lane, uint8_t* panel) {
  const auto* bytes = reinterpret_cast<const int8_t*>(row + kI8ScaleBytes);
  const uint16_t one = float_to_half(1.0f);
  for (int32_t first = 0; first < k; first += kDepth) {
    int32_t values[kDepth];
    for (int i = 0; i < kDepth; i++) values[i] = first + i < num_columns ? bytes[first + i] : 0;
    write_w8_group(values, one, lane, panel + first / kDepth * kW8GroupBytes);
  }
  float scale;
  std::memcpy(&scale, row, sizeof scale);
  write_w8_output_scale(scale, k, lane, panel);
}

constexpr size_t kNibbleBytes = kPanel * kW4Group / 2;
constexpr size_t kW4GroupBytes = kNibbleBytes + kPanel * 4, kW4SymmetricGroupBytes = kNibbleBytes + kPanel * 2;

// `nibbles`: the 32 values (0..15) of a group; a symmetric one has only these and the scale.
void write_w4_group(const uint8_t* nibbles, uint16_t scale, int lane, uint8_t* group) {
  for (int i = 0; i < kW4Group; i += 8) {
    uint8_t* out = group + (i / 8) * 4 * kPanel + lane * 4;
    for (int j = 0; j < 4; j++) out[j] = static_cast<uint8_t>(nibbles[i + j] | nibbles[i + 4 + j] << 4);
  }
  std::memcpy(group + kNibbleBytes + lane * 2, &scale, 2);
}

void write_minimum(uint16_t minimum, int lane, uint8_t* group) {
  std::memcpy(group + kNibbleBytes + kPanel * 2 + lane * 2, &minimum, 2);
}

void pack_w4(const float* row, int32_t k, int lane, uint8_t* panel) {
  for (int32_t g = 0; g < k / kW4Group; g++) {
    const W4Group group = quantize_w4(row + g * kW4Group, nullptr);
    write_w4_group(group.nibbles, group.scale, lane, panel + g * kW4GroupBytes);
    write_minimum(group.minimum, lane, panel + g * kW4GroupBytes);
  }
}

void pack_w4_symmetric(const float* row, int32_t k, int lane, uint8_t* panel) {
  for (int32_t g = 0; g < k / kW4Group; g++) {
    const Int4Group group = quantize_w4_symmetric(row + g * kW4Group);
    write_w4_group(group.nibbles, group.scale, lane, panel + g * kW4SymmetricGroupBytes);
  }
}

// The largest number becomes -6 or 6, all others the nearest of e2m1.
void pack_fp4(const float* row, int32_t k, int lane, uint8_t* panel) {
  for (int32_t g = 0; g < k / kW4Group; g++, row += kW4Group) {
    float largest = 0;
    for (int i = 0; i < kW4Group; i++) largest = std::max(largest, std::fabs(row[i]));
    const uint16_t step = float_to_half(largest / kFp4Middle);
    const float stored = half_to_float(reinterpret_cast<const uint8_t*>(&step));
    uint8_t nibbles[kW4Group];
    for (int i = 0; i < kW4Group; i++) {
      const auto error = [&](int nibble) {
        return std::fabs(stored * static_cast<float>(kFp4Steps[nibble] - kFp4Middle) - row[i]);
      };
      int best = 0;
      for (int nibble = 1; nibble < 16; nibble++) best = error(nibble) < error(best) ? nibble : best;
      nibbles[i] = static_cast<uint8_t>(best);
    }
    write_w4_group(nibbles, step, lane, panel + g * kW4SymmetricGroupBytes);
  }
}

// Q4_0 and Q4_1 already have 4 bits with a scale (and a minimum) per 32, FP4 has a scale; Q4_1 has no form without minima.
bool is_copied(WeightKind kind, Encoding encoding) {
  switch (kind) {
    case WeightKind::kW4:
      return encoding == Encoding::kQ4_0 || encoding == Encoding::kQ4_1 || encoding == Encoding::kTernary;
    case WeightKind::kW4Symmetric: return encoding == Encoding::kQ4_0;
    case WeightKind::kFp4: return encoding == Encoding::kFp4;
    default: return false;
  }
}

// Ternary codes are steps of d from -d.
void copy_ternary_as_w4(const uint8_t* row, int32_t num_columns, int lane, uint8_t* panel) {
  const int32_t size = low_block(WeightKind::kTernary);
  for (int32_t first = 0; first < num_columns; first += size, row += low_encoded_bytes(Encoding::kTernary)) {
    LowBlock block;
    read_low_block(Encoding::kTernary, row, block);
    for (int32_t i = 0; i < size; i += kW4Group) {
      uint8_t* group = panel + (first + i) / kW4Group * kW4GroupBytes;
      write_w4_group(block.codes + i, block.d, lane, group);
      write_minimum(block.d ^ 0x8000, lane, group);
    }
  }
}

void copy_w4(WeightKind kind, Encoding encoding, const uint8_t* row, int32_t num_columns, int lane, uint8_t* panel) {
  const bool keeps_minimum = kind == WeightKind::kW4;
  const bool has_minimum = encoding == Encoding::kQ4_1;
  const size_t block_bytes = encoded_row_bytes(encoding, kW4Group);
  for (int32_t g = 0; g < num_columns / kW4Group; g++, row += block_bytes) {
    uint8_t* group = panel + g * (keeps_minimum ? kW4GroupBytes : kW4SymmetricGroupBytes);
    uint16_t scale, minimum;
    std::memcpy(&scale, row, 2);
    if (kind == WeightKind::kFp4) scale = float_to_half(0.5f * half_to_float(row));
    if (has_minimum) std::memcpy(&minimum, row + 2, 2);
    else minimum = float_to_half(-8 * half_to_float(row));
    const uint8_t* packed = row + (has_minimum ? 4 : 2);
    uint8_t nibbles[kW4Group];
    for (int i = 0; i < 16; i++) nibbles[i] = packed[i] & 15, nibbles[i + 16] = packed[i] >> 4;
    write_w4_group(nibbles, scale, lane, group);
    if (keeps_minimum) write_minimum(minimum, lane, group);
  }
}

void pack_one_row(const Slot& slot, const PackSource& source, int32_t r, uint8_t* panels, std::vector<float>& decoded) {
  const int32_t output = source.first_row + (source.interleaved ? r / 16 * 32 + r % 16 : r);
  uint8_t* panel = panels + static_cast<size_t>(output / kPanel) * panel_bytes(slot.kind, slot.num_columns);
  const int lane = output % kPanel;
  const uint8_t* row = source.data + static_cast<size_t>(r) * encoded_row_bytes(source.encoding, source.num_columns);
  if (has_low_bits(slot.kind)) {
    return copy_low_bits(source.encoding, row, source.num_columns, lane, panel);
  }
  if (is_copied(slot.kind, source.encoding)) {
    if (source.encoding == Encoding::kTernary) return copy_ternary_as_w4(row, source.num_columns, lane, panel);
    return copy_w4(slot.kind, source.encoding, row, source.num_columns, lane, panel);
  }
  if (slot.kind == WeightKind::kW8 && source.encoding == Encoding::kI8) {
    return copy_w8(row, source.num_columns, slot.num_columns, lane, panel);
  }
  decode_row(source.encoding, row, source.num_columns, decoded.data());
  switch (slot.kind) {
    case WeightKind::kBf16: return pack_bf16(decoded.data(), slot.num_columns, lane, panel);
    case WeightKind::kW8: return pack_w8(decoded.data(), slot.num_columns, lane, panel);
    case WeightKind::kW4: return pack_w4(decoded.data(), slot.num_columns, lane, panel);
    case WeightKind::kW4Symmetric: return pack_w4_symmetric(decoded.data(), slot.num_columns, lane, panel);
    case WeightKind::kFp4: return pack_fp4(decoded.data(), slot.num_columns, lane, panel);
    default: return;
  }
}

}  // namespace

void check_source(const Slot& slot, const PackSource& source, size_t source_bytes, size_t arena_bytes) {
  const auto expect = [&](bool fits) { require(fits, "the tensor does not fit into " + slot.name); };
  expect(!slot.is_vector && source.num_rows > 0 && source.num_columns > 0 && source.num_columns <= slot.num_columns &&
         source.first_row >= 0 && source.first_row % (source.interleaved ? 16 : 1) == 0 &&
         source.num_columns % encoded_block(source.encoding) == 0);
  const int64_t last = source.num_rows - 1;
  const int64_t output = source.first_row + (source.interleaved ? last / 16 * 32 + last % 16 : last);
  expect(output < slot.num_rows && slot.offset + slot.num_bytes <= arena_bytes &&
         source_bytes == encoded_row_bytes(source.encoding, source.num_columns) * static_cast<size_t>(source.num_rows));
}

void pack_rows(const Slot& slot, uint8_t* panels, const PackSource& source, int num_threads) {
  require(!has_low_bits(slot.kind) || (is_low_bits(source.encoding) && kind_of(source.encoding) == slot.kind),
          slot.name + " has 2 or 3 bits of another format");
  const size_t num_pieces = (static_cast<size_t>(source.num_rows) + kPanel - 1) / kPanel;
  parallel_for(num_pieces, num_threads, [&](size_t piece) {
    std::vector<float> decoded(static_cast<size_t>(slot.num_columns), 0.0f);
    const int32_t first = static_cast<int32_t>(piece) * kPanel, last = std::min(first + kPanel, source.num_rows);
    for (int32_t r = first; r < last; r++) pack_one_row(slot, source, r, panels, decoded);
  });
}

}  // namespace headrace
