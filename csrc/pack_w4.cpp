#include "pack_w4.h"

#include <algorithm>
#include <cstring>

#include "half.h"
#include "parallel.h"

// Compiled for AVX2, too, where the loader can choose: three times as fast, and the same bits (no fused operations).
// ThreadSanitizer would instrument the function that chooses, which runs before the sanitizer can be called.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_THREAD__)
#define FOR_EVERY_CPU __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EVERY_CPU
#endif
#define INLINE inline __attribute__((always_inline))

namespace headrace {

namespace {

// The nibbles are those of a grid over a somewhat narrower or wider range than that of the numbers: a few far numbers
// may be cut off for a finer grid. Each candidate's grid is then fitted to its nibbles by least squares.
constexpr int kCandidates = 19;
constexpr float kFirstSteps = 14.1f, kStepsApart = 0.1f;  // steps of a candidate's grid in the range; 15 is the range
constexpr float kRoundingMagic = 12582912.0f;              // 1.5 * 2^23: adding it rounds to the nearest integer

// Vectors of the compiler have the same lanes, and so the same sums, on every CPU.
typedef float Lanes __attribute__((vector_size(32)));
constexpr int kLanes = 8, kVectors = kW4Group / kLanes;

INLINE Lanes all(float x) { return Lanes{x, x, x, x, x, x, x, x}; }
INLINE float sum(Lanes a) { return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7])); }
INLINE float half_value(uint16_t half) { return half_to_float(reinterpret_cast<const uint8_t*>(&half)); }

INLINE Lanes round_nibbles(Lanes x) {
  x = x > 0 ? x : all(0);
  x = x < 15 ? x : all(15);
  return (x + kRoundingMagic) - kRoundingMagic;
}

struct Group {
  Lanes x[kVectors], weight[kVectors];
  float low, high;
  float w, wx, wxx;  // sums
};

// Sums over a group of the nibbles q with their weights w.
struct NibbleSums {
  float q, qq, qx;
};

INLINE Group load_group(const float* values, const float* importance) {
  Group group{};
  Lanes w = all(0), wx = all(0), wxx = all(0);
  for (int i = 0; i < kVectors; i++) {
    std::memcpy(&group.x[i], values + i * kLanes, sizeof(Lanes));
    if (importance) std::memcpy(&group.weight[i], importance + i * kLanes, sizeof(Lanes));
    else group.weight[i] = all(1);
    w += group.weight[i], wx += group.weight[i] * group.x[i], wxx += group.weight[i] * group.x[i] * group.x[i];
  }
  group.w = sum(w), group.wx = sum(wx), group.wxx = sum(wxx);
  const auto [low, high] = std::minmax_element(values, values + kW4Group);
  group.low = *low, group.high = *high;
  return group;
}

// Sums of the nibbles of x * inverse + offset.
INLINE NibbleSums sums_of(const Group& group, float inverse, float offset) {
  Lanes q_sum = all(0), qq_sum = all(0), qx_sum = all(0);
  for (int i = 0; i < kVectors; i++) {
    const Lanes q = round_nibbles(group.x[i] * inverse + offset);
    const Lanes wq = group.weight[i] * q;
    q_sum += wq, qq_sum += wq * q, qx_sum += wq * group.x[i];
  }
  return {sum(q_sum), sum(qq_sum), sum(qx_sum)};
}

// Rounds to the grid as stored; returns the weighted error.
INLINE float round_group(const Group& group, float scale, float minimum, uint8_t* nibbles) {
  const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
  Lanes error = all(0);
  for (int i = 0; i < kVectors; i++) {
    const Lanes q = round_nibbles((group.x[i] - minimum) * inverse);
    const Lanes difference = q * scale + minimum - group.x[i];
    error += group.weight[i] * difference * difference;
    for (int lane = 0; lane < kLanes; lane++) nibbles[i * kLanes + lane] = static_cast<uint8_t>(q[lane]);
  }
  return sum(error);
}

INLINE W4Group round_w4(const Group& group, float scale, float minimum) {
  W4Group rounded;
  rounded.scale = float_to_half(scale);
  rounded.minimum = float_to_half(minimum);
  rounded.error = round_group(group, half_value(rounded.scale), half_value(rounded.minimum), rounded.nibbles);
  return rounded;
}

INLINE Int4Group round_int4(const Group& group, float scale, int zero, bool bf16_scale) {
  Int4Group rounded;
  rounded.scale = bf16_scale ? float_to_bf16(scale) : float_to_half(scale);
  rounded.zero = static_cast<uint8_t>(zero);
  const float stored =
      bf16_scale ? bits_to_float(static_cast<uint32_t>(rounded.scale) << 16) : half_value(rounded.scale);
  rounded.error = round_group(group, stored, -static_cast<float>(zero) * stored, rounded.nibbles);
  return rounded;
}

}  // namespace

FOR_EVERY_CPU W4Group quantize_w4(const float* values, const float* importance) {
  const Group group = load_group(values, importance);
  const float range = group.high - group.low;
  const W4Group plain = round_w4(group, range / 15.0f, group.low);
  float best_gain = 0, best_scale = 0, best_minimum = 0;
  for (int i = 0; i < kCandidates && range > 0; i++) {
    const float inverse = (kFirstSteps + kStepsApart * static_cast<float>(i)) / range;
    const NibbleSums s = sums_of(group, inverse, -group.low * inverse);
    const float determinant = group.w * s.qq - s.q * s.q;
    if (!(determinant > 0)) continue;
    const float scale = (group.w * s.qx - s.q * group.wx) / determinant;
    const float minimum = (group.wx - scale * s.q) / group.w;
    const float gain = scale * s.qx + minimum * group.wx;  // the sum of squares minus the error
    if (scale > 0 && gain > best_gain) best_gain = gain, best_scale = scale, best_minimum = minimum;
  }
  if (!(best_scale > 0)) return plain;
  const W4Group fitted = round_w4(group, best_scale, best_minimum);
  return fitted.error < plain.error ? fitted : plain;
}

FOR_EVERY_CPU Int4Group quantize_int4(const float* values, const float* importance, bool bf16_scale) {
  const Group group = load_group(values, importance);
  const float low = std::min(group.low, 0.0f), high = std::max(group.high, 0.0f), range = high - low;
  if (!(range > 0)) return round_int4(group, 0.0f, 0, bf16_scale);
  const auto zero_at = [&](float inverse) {
    const float zero = -low * inverse + 0.5f;  // NaN if a number is infinite
    return zero > 0 ? static_cast<int>(std::min(zero, 15.0f)) : 0;
  };
  const Int4Group plain = round_int4(group, range / 15.0f, zero_at(15.0f / range), bf16_scale);
  float best_gain = 0, best_scale = 0;
  int best_zero = 0;
  for (int i = 0; i < kCandidates; i++) {
    const float inverse = (kFirstSteps + kStepsApart * static_cast<float>(i)) / range;
    for (int zero = std::max(0, zero_at(inverse) - 1); zero <= std::min(15, zero_at(inverse) + 1); zero++) {
      const float z = static_cast<float>(zero);
      const NibbleSums s = sums_of(group, inverse, z);
      const float products = s.qx - z * group.wx, squares = s.qq - 2 * z * s.q + z * z * group.w;
      if (!(products > 0) || !(squares > 0)) continue;
      const float gain = products * products / squares;
      if (gain > best_gain) best_gain = gain, best_scale = products / squares, best_zero = zero;
    }
  }
  if (!(best_scale > 0)) return plain;
  const Int4Group fitted = round_int4(group, best_scale, best_zero, bf16_scale);
  return fitted.error < plain.error ? fitted : plain;
}

FOR_EVERY_CPU Int4Group quantize_w4_symmetric(const float* values) {
  const Group group = load_group(values, nullptr);
  const float largest = group.high > -group.low ? group.high : group.low;
  return round_int4(group, largest / -8.0f, 8, false);
}

void quantize_int4_rows(const float* values, const float* importance, bool bf16_scales, int64_t num_rows,
                        int64_t num_columns, uint8_t* nibbles, uint16_t* scales, uint8_t* zeros, int num_threads) {
  const int64_t num_groups = num_columns / kW4Group;
  parallel_for(static_cast<size_t>(num_rows), num_threads, [&](size_t row) {
    for (int64_t g = 0; g < num_groups; g++) {
      const int64_t index = static_cast<int64_t>(row) * num_groups + g;
      const float* factors = importance ? importance + g * kW4Group : nullptr;
      const Int4Group group = quantize_int4(values + index * kW4Group, factors, bf16_scales);
      std::copy(group.nibbles, group.nibbles + kW4Group, nibbles + index * kW4Group);
      scales[index] = group.scale;
      zeros[index] = group.zero;
    }
  });
}

}  // namespace headrace
