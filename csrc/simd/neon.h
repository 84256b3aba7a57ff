// NEON primitives with dotprod, and with i8mm where HEADRACE_I8MM is 1. Included inside the namespace of one ISA; avx512.h
// documents them. There are as many registers as in AVX-512, so tiles have as many rows.
#pragma once

constexpr int W = 4;
constexpr int kRowsInt = 8;
constexpr int kRowsNibbles = 8;
constexpr int kRowsTwoTerms = 5;
constexpr int kRowsBf16 = 12;
constexpr int kBf16Parts = 2;
constexpr int kRowsAttention = 12;
constexpr int kWideAttentionRows = 6;
constexpr int kW8Bias = HEADRACE_I8MM ? -128 : 0;
constexpr int kW4SumBits = 32;
constexpr bool kPairsRows = HEADRACE_I8MM;
constexpr int kMinRowsFromL2 = 5, kMaxTilesFromL2 = 3;  // not measured

using vf = float32x4_t;
using vi = int32x4_t;
using vmask = uint32x4_t;
using w8_t = int32x4_t;

INLINE vf zero_f() { return vdupq_n_f32(0); }
INLINE vf set_f(float x) { return vdupq_n_f32(x); }
INLINE vf load_f(const float* p) { return vld1q_f32(p); }
INLINE void store_f(float* p, vf x) { vst1q_f32(p, x); }
INLINE vf add(vf a, vf b) { return vaddq_f32(a, b); }
INLINE vf sub(vf a, vf b) { return vsubq_f32(a, b); }
INLINE vf mul(vf a, vf b) { return vmulq_f32(a, b); }
INLINE vf div(vf a, vf b) { return vdivq_f32(a, b); }
INLINE vf fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
INLINE vmask greater(vf a, vf b) { return vcgtq_f32(a, b); }
INLINE vf select(vmask m, vf a, vf b) { return vbslq_f32(m, a, b); }
INLINE vi select_i(vmask m, vi a, vi b) { return vbslq_s32(m, a, b); }
// As x86 does, these return b if one of both is NaN.
INLINE vf max(vf a, vf b) { return select(greater(a, b), a, b); }
INLINE vf min(vf a, vf b) { return select(greater(b, a), a, b); }
INLINE vf abs(vf a) { return vabsq_f32(a); }
INLINE vf round(vf a) { return vrndnq_f32(a); }
INLINE vi round_i(vf a) { return vcvtnq_s32_f32(a); }
INLINE vf scale2(vf a, vf n) {
  return mul(a, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(round_i(n), vdupq_n_s32(127)), 23)));
}
INLINE float sum(vf a) { return vpadds_f32(vadd_f32(vget_low_f32(a), vget_high_f32(a))); }
INLINE float max_of(vf a) {
  const vf b = max(a, vextq_f32(a, a, 2));
  return vgetq_lane_f32(max(b, vextq_f32(b, b, 1)), 0);
}

INLINE vi zero_i() { return vdupq_n_s32(0); }
INLINE vi set_i(int32_t x) { return vdupq_n_s32(x); }
INLINE uint8x16_t load_bytes(const void* p) { return vld1q_u8(static_cast<const uint8_t*>(p)); }
INLINE vi load_i(const void* p) { return vreinterpretq_s32_u8(load_bytes(p)); }
INLINE void store_i(void* p, vi x) { vst1q_u8(static_cast<uint8_t*>(p), vreinterpretq_u8_s32(x)); }
INLINE vi add_i(vi a, vi b) { return vaddq_s32(a, b); }
INLINE int32_t sum_i(vi a) { return vaddvq_s32(a); }
INLINE vi bcast4(const void* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return vdupq_n_s32(x);
}
INLINE vf to_f(vi a) { return vcvtq_f32_s32(a); }
INLINE void store_s16(int16_t* p, vi a) { vst1_s16(p, vqmovn_s32(a)); }
INLINE void store_s8(int8_t* p, vi a) {
  const int16x4_t half = vqmovn_s32(a);
  const int32_t bytes = vget_lane_s32(vreinterpret_s32_s8(vqmovn_s16(vcombine_s16(half, half))), 0);
  __builtin_memcpy(p, &bytes, 4);
}
INLINE vi load_s8_as_s16(const int8_t* p) { return vreinterpretq_s32_s16(vmovl_s8(vld1_s8(p))); }
INLINE vi load_twice(const void* p) {
  int64_t x;
  __builtin_memcpy(&x, p, 8);
  return vreinterpretq_s32_s64(vdupq_n_s64(x));
}
INLINE vi split_words(vi a) {
  const int16x4_t low = vget_low_s16(vreinterpretq_s16_s32(a)), high = vget_high_s16(vreinterpretq_s16_s32(a));
  return vreinterpretq_s32_s16(vcombine_s16(vuzp1_s16(low, high), vuzp2_s16(low, high)));
}
INLINE vi split_bytes(vi a) {
  const int8x8_t low = vget_low_s8(vreinterpretq_s8_s32(a)), high = vget_high_s8(vreinterpretq_s8_s32(a));
  return vreinterpretq_s32_s8(vcombine_s8(vuzp1_s8(low, high), vuzp2_s8(low, high)));
}
INLINE vf half_sums(const vf* x) { return vpaddq_f32(x[0], x[1]); }
INLINE vf load_f16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }

INLINE vmask lanes_between(int low, int high) {
  const vi lane = {0, 1, 2, 3};
  return vandq_u32(vcgeq_s32(lane, set_i(low)), vcltq_s32(lane, set_i(high)));
}
INLINE vmask lanes_of(uint32_t bits) {
  const vmask bit = {1, 2, 4, 8};
  return vtstq_u32(vdupq_n_u32(bits), bit);
}
INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
INLINE void prefetch_l2(const void* p) { __builtin_prefetch(p, 0, 2); }

INLINE vi dot_signed(vi acc, vi w, vi b) { return vdotq_s32(acc, vreinterpretq_s8_s32(w), vreinterpretq_s8_s32(b)); }
INLINE vi flip_signs(vi a) { return vreinterpretq_s32_u8(veorq_u8(vreinterpretq_u8_s32(a), vdupq_n_u8(128))); }
#if HEADRACE_I8MM
INLINE w8_t signed_w8(vi a) { return flip_signs(a); }
INLINE w8_t load_w8(const uint8_t* p) { return load_i(p); }
INLINE vi dot_w8(vi acc, w8_t w, vi b) { return vusdotq_s32(acc, vreinterpretq_u8_s32(w), vreinterpretq_s8_s32(b)); }
// Sums of two rows, and their transposition: of the outputs 0 and 1 of both rows, and of 2 and 3.
INLINE void pair_sums(vi& a, vi& b) {
  const vi x = a;
  a = vzip1q_s32(x, b), b = vzip2q_s32(x, b);
}
INLINE void part_sums(vi& a, vi& b) {
  const vi x = a;
  a = vuzp1q_s32(x, b), b = vuzp2q_s32(x, b);
}
// USMMLA: two outputs by two rows by eight inputs, for which the two vectors of weights are zipped.
INLINE void dot_pair(vi& a, vi& b, vi low, vi high, const int8_t* first, const int8_t* second) {
  const int8x16_t rows = vcombine_s8(vld1_s8(first), vld1_s8(second));
  a = vusmmlaq_s32(a, vreinterpretq_u8_s32(vzip1q_s32(low, high)), rows);
  b = vusmmlaq_s32(b, vreinterpretq_u8_s32(vzip2q_s32(low, high)), rows);
}
#else
INLINE w8_t signed_w8(vi a) { return a; }
INLINE w8_t load_w8(const uint8_t* p) { return flip_signs(load_i(p)); }
INLINE vi dot_w8(vi acc, w8_t w, vi b) { return dot_signed(acc, w, b); }
#endif
INLINE vi mul_w4(vi w, vi b) { return dot_signed(zero_i(), w, b); }
INLINE vi dot_w4(vi acc, vi w, vi b) { return dot_signed(acc, w, b); }
INLINE vi widen_w4(vi sums) { return sums; }
INLINE vi low_nibbles(vi a) { return vreinterpretq_s32_u8(vandq_u8(vreinterpretq_u8_s32(a), vdupq_n_u8(15))); }
INLINE vi high_nibbles(vi a) { return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(a), 4)); }
// Bytes of a table of 16 at the indices in `nibbles`.
INLINE vi look_up(vi nibbles, const uint8_t* table) {
  return vreinterpretq_s32_u8(vqtbl1q_u8(load_bytes(table), vreinterpretq_u8_s32(nibbles)));
}
INLINE vi dot_s16(vi acc, vi w, vi b) {
  const int16x8_t x = vreinterpretq_s16_s32(w), y = vreinterpretq_s16_s32(b);
  return add_i(acc, vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y)));
}
INLINE vi sum_factor(vi pairs, int half) {
  const uint32x4_t bits = vreinterpretq_u32_s32(pairs);
  return vreinterpretq_s32_u32(half ? vshrq_n_u32(bits, 16) : vandq_u32(bits, vdupq_n_u32(0xffff)));
}

INLINE vi bf16_part(vi pairs, int part) {
  return part == 0 ? vshlq_n_s32(pairs, 16) : vandq_s32(pairs, set_i(static_cast<int32_t>(0xffff0000u)));
}
INLINE vf dot_bf16(vf acc, vi w, vi b) { return fma(vreinterpretq_f32_s32(w), vreinterpretq_f32_s32(b), acc); }
// Rounded to bf16 in the upper halves; the lower ones are arbitrary.
INLINE vi bf16_bits(vf a) {
  const uint32x4_t bits = vreinterpretq_u32_f32(a), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  return vreinterpretq_s32_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))));
}
INLINE void store_bf16(uint16_t* p, vf a) { vst1_u16(p, vshrn_n_u32(vreinterpretq_u32_s32(bf16_bits(a)), 16)); }
INLINE void store_bf16_inputs(void* p, vf a) { store_i(p, bf16_part(bf16_bits(a), 1)); }
