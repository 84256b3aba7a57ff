#include "pack_low_bits.h"

#include <algorithm>
#include <cstring>

#include "half.h"

namespace headrace {

namespace {

// Codes of 2 bits: byte m of 32 holds the numbers m, 32 + m, 64 + m and 96 + m.
void read_codes(const uint8_t* bytes, uint8_t* codes) {
  for (int i = 0; i < 128; i++) codes[i] = bytes[i % 32] >> (i / 32 * 2) & 3;
}

// Source of the blocks: ggml `ggml-common.h` and `ggml-quants.c`.
void read_ternary(const uint8_t* bytes, LowBlock& block) {
  read_codes(bytes, block.codes);
  std::fill(block.scales, std::end(block.scales), int8_t{1});
  block.middle = 1;
  std::memcpy(&block.d, bytes + 32, 2);
}

void read_q2_k(const uint8_t* bytes, LowBlock& block) {
  for (int i = 0; i < 16; i++) block.scales[i] = bytes[i] & 15, block.minima[i] = bytes[i] >> 4;
  for (int i = 0; i < 2; i++) read_codes(bytes + 16 + 32 * i, block.codes + 128 * i);
  std::memcpy(&block.d, bytes + 80, 2);
  std::memcpy(&block.dmin, bytes + 82, 2);
}

void read_q3_k(const uint8_t* bytes, LowBlock& block) {
  for (int i = 0; i < 2; i++) read_codes(bytes + 32 + 32 * i, block.codes + 128 * i);
  for (int i = 0; i < 256; i++) block.codes[i] |= static_cast<uint8_t>((bytes[i % 32] >> (i / 32) & 1) << 2);
  const uint8_t* scales = bytes + 96;
  for (int i = 0; i < 16; i++) {
    const int low = scales[i % 8] >> (i / 8 * 4) & 15, high = scales[8 + i % 4] >> (i / 4 * 2) & 3;
    block.scales[i] = static_cast<int8_t>((low | high << 4) - 32);
  }
  block.middle = 4;
  std::memcpy(&block.d, bytes + 108, 2);
}

float half_value(uint16_t half) { return half_to_float(reinterpret_cast<const uint8_t*>(&half)); }

void write_block(WeightKind kind, const LowBlock& block, int lane, uint8_t* out) {
  const int size = low_block(kind);
  for (int i = 0; i < size; i++) {
    uint8_t* slab = out + i / kDepth * low_slab_bytes(kind);
    const int at = lane * 4 + i % 4;
    slab[i % kDepth / 16 * kLowRowBytes + at] |= static_cast<uint8_t>((block.codes[i] & 3) << (i % 16 / 4 * 2));
    if (kind == WeightKind::kW3) {
      slab[(4 + i % kDepth / 32) * kLowRowBytes + at] |= static_cast<uint8_t>(block.codes[i] >> 2 << (i % 32 / 4));
    }
  }
  constexpr int kPlaces[] = {0, 2, 1, 3};  // pairs of neighbours are the low and the high bytes of two words
  for (int i = 0; kind != WeightKind::kTernary && i < size / kLowGroup; i++) {
    uint8_t* scales = out + i / 4 * low_slab_bytes(kind) + low_scales_row(kind) * kLowRowBytes;
    scales[lane * 4 + kPlaces[i % 4]] = static_cast<uint8_t>(block.scales[i] | block.minima[i] << 4);
  }
  uint8_t* halves = out + size / kDepth * low_slab_bytes(kind) + lane * 2;
  std::memcpy(halves, &block.d, 2);
  const uint16_t minus_dmin = block.dmin ^ 0x8000;
  if (kind == WeightKind::kW2) std::memcpy(halves + kPanel * 2, &minus_dmin, 2);
}

}  // namespace

void read_low_block(Encoding encoding, const uint8_t* bytes, LowBlock& block) {
  block = {};
  if (encoding == Encoding::kTernary) read_ternary(bytes, block);
  else if (encoding == Encoding::kQ2K) read_q2_k(bytes, block);
  else read_q3_k(bytes, block);
}

void decode_low_bits(Encoding encoding, const uint8_t* row, int32_t num_columns, float* out) {
  const int size = encoded_block(encoding);
  for (int32_t first = 0; first < num_columns; first += size, row += low_encoded_bytes(encoding)) {
    LowBlock block;
    read_low_block(encoding, row, block);
    const float d = half_value(block.d), dmin = half_value(block.dmin);
    for (int i = 0; i < size; i++) {
      const int step = block.scales[i / kLowGroup] * (block.codes[i] - block.middle);
      out[first + i] = d * static_cast<float>(step) - dmin * block.minima[i / kLowGroup];
    }
  }
}

void copy_low_bits(Encoding encoding, const uint8_t* row, int32_t num_columns, int lane, uint8_t* panel) {
  const WeightKind kind = kind_of(encoding);
  const int size = low_block(kind);
  for (int32_t first = 0; first < num_columns; first += size, row += low_encoded_bytes(encoding)) {
    LowBlock block;
    read_low_block(encoding, row, block);
    write_block(kind, block, lane, panel + first / size * low_block_bytes(kind));
  }
}

}  // namespace headrace
