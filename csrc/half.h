// IEEE half precision without hardware support: for packing and the portable kernels.
#pragma once

#include <cstdint>
#include <cstring>

namespace headrace {

inline float bits_to_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

inline uint32_t float_to_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

inline float half_to_float(const uint8_t* little_endian) {
  const uint32_t half = little_endian[0] | static_cast<uint32_t>(little_endian[1]) << 8;
  const uint32_t sign = (half & 0x8000) << 16, rest = half & 0x7fff;
  if (rest < 0x400) return bits_to_float(float_to_bits(static_cast<float>(rest) * 0x1p-24f) | sign);  // subnormal
  if (rest >= 0x7c00) return bits_to_float(sign | 0x7f800000u | (rest & 0x3ff) << 13);
  return bits_to_float(sign | ((rest << 13) + 0x38000000u));
}

// Rounds to nearest even; saturates at the largest half, so that no weight becomes infinite.
inline uint16_t float_to_half(float x) {
  const uint32_t sign = float_to_bits(x) >> 16 & 0x8000;
  float magnitude = x < 0 ? -x : x;
  if (!(magnitude < 65504.0f)) return static_cast<uint16_t>(sign | 0x7bff);
  if (magnitude < 0x1p-14f) {  // subnormal: the addition rounds at 2^-24
    return static_cast<uint16_t>(sign | (float_to_bits(magnitude + 0.5f) - float_to_bits(0.5f)));
  }
  const uint32_t bits = float_to_bits(magnitude) - 0x38000000u;
  return static_cast<uint16_t>(sign | (bits + 0xfff + (bits >> 13 & 1)) >> 13);
}

// Rounds to nearest even.
inline uint16_t float_to_bf16(float x) {
  const uint32_t bits = float_to_bits(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace headrace
