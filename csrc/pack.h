// Packs rows of a checkpoint into panels of a matrix (`Matrix` in model.h describes the formats).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "layout.h"

namespace headrace {

// kI8: a row is its scale (fp32) and then signed bytes. kFp4: blocks of a scale (a half) and 32 numbers of e2m1.
// kTernary: blocks of 128 codes of 2 bits, in the order of TQ2_0, and d (a half).
enum class Encoding { kF32, kF16, kBf16, kQ8_0, kQ4_0, kQ4_1, kI8, kFp4, kTernary, kQ2K, kQ3K };
constexpr size_t kI8ScaleBytes = 4;

Encoding parse_encoding(const std::string& name);  // throws std::invalid_argument
int32_t encoded_block(Encoding encoding);  // numbers of a block
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

// Throws std::invalid_argument if the rows, or their bytes, do not fit into the slot, or the slot into its arena.
void check_source(const Slot& slot, const PackSource& source, size_t source_bytes, size_t arena_bytes);

// `panels` is the start of the slot, zero where nothing was packed before. W8 copies I8 rows unchanged, W4
// Q4_0, Q4_1 and ternary blocks, FP4 those of FP4, and ternary, W2 and W3 those of ternary, Q2_K and Q3_K; anything else is
// quantized. Throws std::invalid_argument for other encodings of 2 and 3 bits.
void pack_rows(const Slot& slot, uint8_t* panels, const PackSource& source, int num_threads);

}  // namespace headrace
