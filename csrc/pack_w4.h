// Rounding of 32 numbers to 4 bits with a scale and a minimum, or a whole zero point, of least error.
#pragma once

#include <cstdint>

#include "model.h"

namespace headrace {

// value = scale * nibble + minimum; both are halves.
struct W4Group {
  uint8_t nibbles[kW4Group];
  uint16_t scale, minimum;
  float error;  // sum of the squared errors, each times its importance
};

// Quantizes kW4Group numbers. `importance` (null: all alike) holds a factor for the squared error of each.
W4Group quantize_w4(const float* values, const float* importance);

// value = scale * (nibble - zero), with a zero point between 0 and 15, as formats of integers store it.
struct Int4Group {
  uint8_t nibbles[kW4Group];
  uint8_t zero;
  uint16_t scale;  // a half, or bf16
  float error;
};

Int4Group quantize_int4(const float* values, const float* importance, bool bf16_scale);

// Quantizes kW4Group numbers with a scale (a half) and a zero point of 8, as Q4_0 does: the largest number becomes -8 or 8.
Int4Group quantize_w4_symmetric(const float* values);

// Quantizes a matrix by quantize_int4. `importance` has a factor for each column, or is null. `nibbles` is [rows][columns],
// `scales` and `zeros` [rows][columns / kW4Group]; columns are a multiple of kW4Group.
void quantize_int4_rows(const float* values, const float* importance, bool bf16_scales, int64_t num_rows,
                        int64_t num_columns, uint8_t* nibbles, uint16_t* scales, uint8_t* zeros, int num_threads);

}  // namespace headrace
