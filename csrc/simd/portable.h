// Primitives for any CPU, on the vector types of GCC and Clang (the compiler chooses SSE2, NEON or scalar code).
// Included inside the namespace of one ISA; avx512.h documents them.
#pragma once

constexpr int W = 4;
constexpr int kRowsInt = 4;
constexpr int kRowsNibbles = 4;
constexpr int kRowsTwoTerms = 2;
constexpr int kRowsBf16 = 4;
constexpr int kBf16Parts = 2;
constexpr int kRowsAttention = 4;
constexpr int kWideAttentionRows = 2;
constexpr int kMinRowsFromL2 = 5, kMaxTilesFromL2 = 3;
constexpr int kW8Bias = 0;
constexpr int kW4SumBits = 32;
constexpr bool kPairsRows = false;

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef uint32_t vu __attribute__((vector_size(16)));
typedef int32_t vmask __attribute__((vector_size(16)));
typedef int16_t v8s16 __attribute__((vector_size(16)));
typedef int8_t v16s8 __attribute__((vector_size(16)));
using w8_t = vi;

INLINE vf zero_f() { return vf{}; }
INLINE vf set_f(float x) { return vf{x, x, x, x}; }
INLINE vf load_f(const float* p) {
  vf x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
INLINE void store_f(float* p, vf x) { __builtin_memcpy(p, &x, sizeof x); }
INLINE vf add(vf a, vf b) { return a + b; }
INLINE vf sub(vf a, vf b) { return a - b; }
INLINE vf mul(vf a, vf b) { return a * b; }
INLINE vf div(vf a, vf b) { return a / b; }
INLINE vf fma(vf a, vf b, vf c) { return a * b + c; }
INLINE vf select(vmask m, vf a, vf b) { return (vf)(((vi)a & m) | ((vi)b & ~m)); }
INLINE vi select_i(vmask m, vi a, vi b) { return (a & m) | (b & ~m); }
INLINE vmask greater(vf a, vf b) { return a > b; }
INLINE vf max(vf a, vf b) { return select(a > b, a, b); }
INLINE vf min(vf a, vf b) { return select(a < b, a, b); }
INLINE vf abs(vf a) { return (vf)((vi)a & 0x7fffffff); }
// Rounds to nearest even for |a| < 2^22: adding 1.5 * 2^23 leaves no bits for a fraction.
INLINE vf round(vf a) { return (a + 12582912.0f) - 12582912.0f; }
INLINE vi round_i(vf a) { return (vi)(a + 12582912.0f) - 0x4b400000; }
INLINE vf scale2(vf a, vf n) { return a * (vf)((round_i(n) + 127) << 23); }
INLINE float sum(vf a) { return (a[0] + a[2]) + (a[1] + a[3]); }
INLINE float max_of(vf a) {
  float x = a[0] > a[1] ? a[0] : a[1], y = a[2] > a[3] ? a[2] : a[3];
  return x > y ? x : y;
}

INLINE vi zero_i() { return vi{}; }
INLINE vi set_i(int32_t x) { return vi{x, x, x, x}; }
INLINE vi load_i(const void* p) {
  vi x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
INLINE void store_i(void* p, vi x) { __builtin_memcpy(p, &x, sizeof x); }
// Sums wrap, as the instructions of the other ISAs do: a NaN among the activations makes them large.
INLINE vi add_i(vi a, vi b) { return (vi)((vu)a + (vu)b); }
INLINE int32_t sum_i(vi a) {
  const vu u = (vu)a;
  return static_cast<int32_t>(u[0] + u[1] + u[2] + u[3]);
}
INLINE vi bcast4(const void* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return set_i(x);
}
INLINE vf to_f(vi a) { return __builtin_convertvector(a, vf); }
INLINE int32_t clamp(int32_t x, int32_t low, int32_t high) { return x < low ? low : x > high ? high : x; }
INLINE void store_s8(int8_t* p, vi a) {
  for (int i = 0; i < W; i++) p[i] = static_cast<int8_t>(clamp(a[i], -128, 127));
}
INLINE void store_s16(int16_t* p, vi a) {
  for (int i = 0; i < W; i++) p[i] = static_cast<int16_t>(clamp(a[i], -32768, 32767));
}
INLINE vi load_s8_as_s16(const int8_t* p) {
  v8s16 x;
  for (int i = 0; i < 2 * W; i++) x[i] = p[i];
  return (vi)x;
}
INLINE vi load_twice(const void* p) {
  int32_t x[2];
  __builtin_memcpy(x, p, sizeof x);
  return vi{x[0], x[1], x[0], x[1]};
}
// In steps that SSE2 has instructions for: within 64 bits, then of 32 bits.
INLINE vi split_words(vi a) {
  const v8s16 x = (v8s16)a;
  const vi near = (vi)v8s16{x[0], x[2], x[1], x[3], x[4], x[6], x[5], x[7]};
  return vi{near[0], near[2], near[1], near[3]};
}
INLINE vi split_bytes(vi a) {
  return split_words((a & static_cast<int32_t>(0xff0000ffu)) | ((a & 0xff00) << 8) | ((a >> 8) & 0xff00));
}
INLINE vf half_sums(const vf* x) {
  return vf{x[0][0] + x[0][1], x[0][2] + x[0][3], x[1][0] + x[1][1], x[1][2] + x[1][3]};
}
INLINE float half_to_float(uint16_t half) {
  uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, rest = half & 0x7fff;
  uint32_t bits = rest >= 0x7c00 ? 0x7f800000u | (rest & 0x3ff) << 13 : (rest << 13) + 0x38000000u;
  float x;
  __builtin_memcpy(&x, &bits, 4);
  if (rest < 0x400) x = static_cast<float>(rest) * 5.9604644775390625e-8f;  // subnormal: rest * 2^-24
  __builtin_memcpy(&bits, &x, 4);
  bits |= sign;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}
INLINE vf load_f16(const uint16_t* p) {
  return vf{half_to_float(p[0]), half_to_float(p[1]), half_to_float(p[2]), half_to_float(p[3])};
}
INLINE vmask lanes_between(int low, int high) {
  vi lane = {0, 1, 2, 3};
  return (lane >= low) & (lane < high);
}
INLINE vmask lanes_of(uint32_t bits) {
  vi bit = {1, 2, 4, 8};
  return (set_i(static_cast<int32_t>(bits)) & bit) == bit;
}
INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
INLINE void prefetch_l2(const void* p) { __builtin_prefetch(p, 0, 2); }

// Byte j of every lane, sign-extended.
template <int J>
INLINE vi signed_byte(vi a) {
  return (a << (24 - 8 * J)) >> 24;
}
INLINE vi dot_signed(vi acc, vi w, vi b) {
  acc += signed_byte<0>(w) * signed_byte<0>(b);
  acc += signed_byte<1>(w) * signed_byte<1>(b);
  acc += signed_byte<2>(w) * signed_byte<2>(b);
  return acc + signed_byte<3>(w) * signed_byte<3>(b);
}
INLINE w8_t signed_w8(vi a) { return a; }
INLINE w8_t load_w8(const uint8_t* p) { return load_i(p) ^ static_cast<int32_t>(0x80808080u); }
INLINE vi dot_w8(vi acc, w8_t w, vi b) { return dot_signed(acc, w, b); }
INLINE vi mul_w4(vi w, vi b) { return dot_signed(zero_i(), w, b); }
INLINE vi dot_w4(vi acc, vi w, vi b) { return dot_signed(acc, w, b); }
INLINE vi widen_w4(vi sums) { return sums; }
INLINE vi low_nibbles(vi a) { return a & 0x0f0f0f0f; }
INLINE vi high_nibbles(vi a) { return (a >> 4) & 0x0f0f0f0f; }
// Bytes of a table of 16 at the indices in `nibbles`.
INLINE vi look_up(vi nibbles, const uint8_t* table) {
  uint8_t bytes[sizeof nibbles];
  __builtin_memcpy(bytes, &nibbles, sizeof nibbles);
  for (uint8_t& byte : bytes) byte = table[byte];
  __builtin_memcpy(&nibbles, bytes, sizeof nibbles);
  return nibbles;
}
INLINE vi dot_s16(vi acc, vi w, vi b) {
  return acc + ((w << 16) >> 16) * ((b << 16) >> 16) + (w >> 16) * (b >> 16);
}
INLINE vi sum_factor(vi pairs, int half) { return half ? (vi)((vu)pairs >> 16) : pairs & 0xffff; }
INLINE vi bf16_part(vi pairs, int part) { return part == 0 ? pairs << 16 : pairs & static_cast<int32_t>(0xffff0000u); }
INLINE vf dot_bf16(vf acc, vi w, vi b) { return acc + (vf)w * (vf)b; }
// Rounded to bf16 in the upper halves; the lower ones are arbitrary.
INLINE vi bf16_bits(vf a) { return (vi)((vu)a + 0x7fff + (((vu)a >> 16) & 1)); }
INLINE void store_bf16(uint16_t* p, vf a) {
  const vu rounded = (vu)bf16_bits(a) >> 16;
  for (int i = 0; i < W; i++) p[i] = static_cast<uint16_t>(rounded[i]);
}
INLINE void store_bf16_inputs(void* p, vf a) { store_i(p, bf16_part(bf16_bits(a), 1)); }
