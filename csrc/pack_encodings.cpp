#include <cstring>
#include <stdexcept>

#include "half.h"
#include "pack.h"
#include "pack_low_bits.h"

namespace headrace {

namespace {

// Blocks of 32 numbers. Source: ggml `ggml-common.h`.
constexpr int kBlock = 32;
constexpr size_t kQ8Bytes = 34, kQ40Bytes = 18, kQ41Bytes = 20;

void decode_q8_0(const uint8_t* block, float* out) {
  const float scale = half_to_float(block);
  const auto* values = reinterpret_cast<const int8_t*>(block + 2);
  for (int i = 0; i < kBlock; i++) out[i] = static_cast<float>(values[i]) * scale;
}

void decode_nibbles(const uint8_t* nibbles, float scale, float minimum, float* out) {
  for (int i = 0; i < 16; i++) {
    out[i] = static_cast<float>(nibbles[i] & 15) * scale + minimum;
    out[i + 16] = static_cast<float>(nibbles[i] >> 4) * scale + minimum;
  }
}

void decode_fp4(const uint8_t* block, float* out) {
  const float step = 0.5f * half_to_float(block);
  const auto value = [&](int nibble) { return step * static_cast<float>(kFp4Steps[nibble] - kFp4Middle); };
  for (int i = 0; i < 16; i++) out[i] = value(block[2 + i] & 15), out[i + 16] = value(block[2 + i] >> 4);
}

}  // namespace

Encoding parse_encoding(const std::string& name) {
  if (name == "f32") return Encoding::kF32;
  if (name == "f16") return Encoding::kF16;
  if (name == "bf16") return Encoding::kBf16;
  if (name == "q8_0") return Encoding::kQ8_0;
  if (name == "q4_0") return Encoding::kQ4_0;
  if (name == "q4_1") return Encoding::kQ4_1;
  if (name == "i8") return Encoding::kI8;
  if (name == "fp4") return Encoding::kFp4;
  if (name == "ternary") return Encoding::kTernary;
  if (name == "q2_k") return Encoding::kQ2K;
  if (name == "q3_k") return Encoding::kQ3K;
  throw std::invalid_argument("encoding is " + name +
                              "; expected f32, f16, bf16, q8_0, q4_0, q4_1, i8, fp4, ternary, q2_k or q3_k");
}

int32_t encoded_block(Encoding encoding) {
  switch (encoding) {
    case Encoding::kQ8_0:
    case Encoding::kQ4_0:
    case Encoding::kQ4_1:
    case Encoding::kFp4: return kBlock;
    case Encoding::kTernary:
    case Encoding::kQ2K:
    case Encoding::kQ3K: return low_block(kind_of(encoding));
    default: return 1;
  }
}

size_t encoded_row_bytes(Encoding encoding, int32_t num_columns) {
  const size_t columns = static_cast<size_t>(num_columns);
  switch (encoding) {
    case Encoding::kF32: return columns * 4;
    case Encoding::kF16:
    case Encoding::kBf16: return columns * 2;
    case Encoding::kQ8_0: return columns / kBlock * kQ8Bytes;
    case Encoding::kQ4_0:
    case Encoding::kFp4: return columns / kBlock * kQ40Bytes;
    case Encoding::kQ4_1: return columns / kBlock * kQ41Bytes;
    case Encoding::kI8: return kI8ScaleBytes + columns;
    case Encoding::kTernary:
    case Encoding::kQ2K:
    case Encoding::kQ3K: return columns / encoded_block(encoding) * low_encoded_bytes(encoding);
  }
  return 0;
}

void decode_row(Encoding encoding, const uint8_t* row, int32_t num_columns, float* out) {
  const int32_t num_blocks = num_columns / kBlock;
  switch (encoding) {
    case Encoding::kF32: std::memcpy(out, row, static_cast<size_t>(num_columns) * 4); break;
    case Encoding::kF16:
      for (int32_t i = 0; i < num_columns; i++) out[i] = half_to_float(row + 2 * i);
      break;
    case Encoding::kBf16:
      for (int32_t i = 0; i < num_columns; i++) {
        const uint8_t bytes[4] = {0, 0, row[2 * i], row[2 * i + 1]};
        std::memcpy(out + i, bytes, 4);
      }
      break;
    case Encoding::kQ8_0:
      for (int32_t b = 0; b < num_blocks; b++) decode_q8_0(row + b * kQ8Bytes, out + b * kBlock);
      break;
    case Encoding::kQ4_0:
      for (int32_t b = 0; b < num_blocks; b++) {
        const uint8_t* block = row + b * kQ40Bytes;
        const float scale = half_to_float(block);
        decode_nibbles(block + 2, scale, -8 * scale, out + b * kBlock);
      }
      break;
    case Encoding::kQ4_1:
      for (int32_t b = 0; b < num_blocks; b++) {
        const uint8_t* block = row + b * kQ41Bytes;
        decode_nibbles(block + 4, half_to_float(block), half_to_float(block + 2), out + b * kBlock);
      }
      break;
    case Encoding::kFp4:
      for (int32_t b = 0; b < num_blocks; b++) decode_fp4(row + b * kQ40Bytes, out + b * kBlock);
      break;
    case Encoding::kTernary:
    case Encoding::kQ2K:
    case Encoding::kQ3K: return decode_low_bits(encoding, row, num_columns, out);
    case Encoding::kI8: {
      float scale;
      std::memcpy(&scale, row, sizeof scale);
      const auto* values = reinterpret_cast<const int8_t*>(row + kI8ScaleBytes);
      for (int32_t i = 0; i < num_columns; i++) out[i] = static_cast<float>(values[i]) * scale;
      break;
    }
  }
}

}  // namespace headrace
