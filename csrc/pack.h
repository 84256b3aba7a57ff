// Turns rows of a checkpoint into panels of a packed matrix (the formats are described at `Matrix` in model.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "layout.h"

namespace headrace {

// kI8: a row is its scale (fp32) and then signed bytes.
enum class Encoding { kF32, kF16, kBf16, kQ8_0, kQ4_0, kQ4_1, kI8 };
constexpr size_t kI8ScaleBytes = 4;

Encoding parse_encoding(const std::string& name);  // throws std::invalid_argument
size_t encoded_row_bytes(Encoding encoding, int32_t num_columns);

// Writes `num_columns` numbers.
void decode_row(Encoding encoding, const uint8_t* row, int32_t num_columns, float* out);

// Rows of one tensor of a checkpoint and where they go: source row r becomes output `first_row + r`, or, when
// `interleaved` (gate and up), output `first_row + r / 16 * 32 + r % 16`.
struct PackSource {
  Encoding encoding;
  const uint8_t* data;
  int32_t num_rows, num_columns;
  int32_t first_row;
  bool interleaved;
};

// `panels` is where the slot begins; it must be zero where nothing was packed before.
// W8 has one scale per output; it takes the rows of I8 as they are. W4 takes the blocks of Q4_0 and Q4_1 as they are and quantises anything else.
void pack_rows(const Slot& slot, uint8_t* panels, const PackSource& source, int num_threads);

}  // namespace headrace
