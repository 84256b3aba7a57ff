// Blocks of weights of 2 and 3 bits: their encodings in files, and their places in panels.
#pragma once

#include "pack.h"

namespace headrace {

constexpr bool is_low_bits(Encoding encoding) {
  return encoding == Encoding::kTernary || encoding == Encoding::kQ2K || encoding == Encoding::kQ3K;
}
// The format of matrices that keeps such an encoding.
constexpr WeightKind kind_of(Encoding encoding) {
  if (encoding == Encoding::kTernary) return WeightKind::kTernary;
  return encoding == Encoding::kQ2K ? WeightKind::kW2 : WeightKind::kW3;
}
constexpr size_t low_encoded_bytes(Encoding encoding) {  // of a block
  return encoding == Encoding::kTernary ? 34 : encoding == Encoding::kQ2K ? 84 : 110;
}

// Numbers, and what they have in common: number i is d * scales[i / 16] * (codes[i] - middle) - dmin * minima[i / 16].
struct LowBlock {
  uint8_t codes[256];
  int8_t scales[256 / kLowGroup];
  uint8_t minima[256 / kLowGroup];
  uint8_t middle;
  uint16_t d, dmin;  // halves
};

void read_low_block(Encoding encoding, const uint8_t* bytes, LowBlock& block);
void decode_low_bits(Encoding encoding, const uint8_t* row, int32_t num_columns, float* out);

// Copies a row to lane `lane` of a panel of the kind of its encoding, which is zero there.
void copy_low_bits(Encoding encoding, const uint8_t* row, int32_t num_columns, int lane, uint8_t* panel);

}  // namespace headrace
