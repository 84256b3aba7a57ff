// Packs rows of a checkpoint into panels of a matrix (`Matrix` in model.h describes the formats).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "layout.h"

namespace headrace {

// kI8: a row is its scale (fp32) and then signed bytes. kFp4: blocks of a scale (a half) and 32 numbers of e2m1.
enum class Encoding { kF32, kF16, kBf16, kQ8_0, kQ4_0, kQ4_1, kI8, kFp4 };
constexpr size_t kI8ScaleBytes = 4;

Encoding parse_encoding(const std::string& name);  // throws std::invalid_argument
size_t encoded_row_bytes(Encoding encoding, int32_t num_columns);

// Decodes a row to `num_columns` numbers.
void decode_row(Encoding encoding, const uint8_t* row, int32_t num_columns, float* out);

// Rows of a checkpoint tensor and their place: source row r becomes output `first_row + r`, or, if `interleaved` (gate
// and up), output `first_row + r / 16 * 32 + r % 16`.
struct PackSource {
  Encoding encoding;
  const uint8_t* data;
  int32_t num_rows, num_columns;
  int32_t first_row;
  bool interleaved;
};

// `panels` is the start of the slot, zero where nothing was packed before. W8 copies I8 rows unchanged, W4
// Q4_0 and Q4_1 blocks, FP4 those of FP4; anything else is quantized.
void pack_rows(const Slot& slot, uint8_t* panels, const PackSource& source, int num_threads);

}  // namespace headrace
