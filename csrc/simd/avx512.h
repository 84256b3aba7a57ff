// AVX-512 (F, BW, DQ, VL, VNNI) primitives; BF16 products are native where HEADRACE_NATIVE_BF16 is 1.
// Included inside the namespace of one ISA. The other headers of this folder define the same names.
#pragma once

constexpr int W = 16;              // fp32 lanes of a vector
constexpr int kRowsInt = 8;        // rows of an integer GEMM tile, bounded by the registers
constexpr int kRowsNibbles = 8;    // likewise, with weights of 4 bits
constexpr int kRowsTwoTerms = 5;   // likewise, with two bytes for each input
constexpr int kRowsBf16 = 12;
constexpr int kBf16Parts = HEADRACE_NATIVE_BF16 ? 1 : 2;  // dot_bf16 multiplies pairs of bf16, or single numbers as fp32
constexpr int kRowsAttention = 12;
constexpr int kWideAttentionRows = 6;  // up to here P x V keeps four vectors per row in registers, above it two
constexpr int kMinRowsFromL2 = 5, kMaxTilesFromL2 = 3;  // when products prefetch weights to L2 (gemm.inl)
constexpr int kW8Bias = -128;      // dot_w8 reads the weight as unsigned w + 128: sums start at kW8Bias * sum(b)
constexpr int kW4SumBits = 32;     // of a lane of dot_w4
constexpr bool kPairsRows = false; // dot_pair multiplies two rows at once; neon.h has it

using vf = __m512;
using vi = __m512i;
using vmask = __mmask16;
using w8_t = __m512i;

INLINE vf zero_f() { return _mm512_setzero_ps(); }
INLINE vf set_f(float x) { return _mm512_set1_ps(x); }
INLINE vf load_f(const float* p) { return _mm512_loadu_ps(p); }
INLINE void store_f(float* p, vf x) { _mm512_storeu_ps(p, x); }
INLINE vf add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINE vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf max(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf min(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE vf abs(vf a) { return _mm512_abs_ps(a); }
INLINE vf round(vf a) { return _mm512_roundscale_ps(a, 0); }
INLINE vf scale2(vf a, vf n) { return _mm512_scalef_ps(a, n); }  // a * 2^n
INLINE float sum(vf a) { return _mm512_reduce_add_ps(a); }
INLINE float max_of(vf a) { return _mm512_reduce_max_ps(a); }

INLINE vi zero_i() { return _mm512_setzero_si512(); }
INLINE vi set_i(int32_t x) { return _mm512_set1_epi32(x); }
INLINE vi load_i(const void* p) { return _mm512_loadu_si512(p); }
INLINE void store_i(void* p, vi x) { _mm512_storeu_si512(p, x); }
INLINE vi add_i(vi a, vi b) { return _mm512_add_epi32(a, b); }
// Not _mm512_reduce_add_epi32: in GCC 12 its sums of signed numbers may not wrap, as those of a NaN do (see portable.h).
INLINE int32_t sum_i(vi a) {
  const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
  __m128i x = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
INLINE vi bcast4(const void* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return _mm512_set1_epi32(x);
}
INLINE vf to_f(vi a) { return _mm512_cvtepi32_ps(a); }
INLINE vi round_i(vf a) { return _mm512_cvtps_epi32(a); }
INLINE void store_s8(int8_t* p, vi a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(a)); }
INLINE void store_s16(int16_t* p, vi a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(a));
}
// 2 W signed bytes as 2 W signed 16-bit numbers.
INLINE vi load_s8_as_s16(const int8_t* p) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
// Half a vector, twice.
INLINE vi load_twice(const void* p) { return _mm512_broadcast_i64x4(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
// The numbers of 16 (8) bits at even places, then those at odd places.
INLINE vi split_words(vi a) {
  alignas(64) static constexpr uint16_t kPlaces[32] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                                                       1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
  return _mm512_permutexvar_epi16(load_i(kPlaces), a);
}
INLINE vi split_bytes(vi a) {
  const __m128i places = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
  const vi split = _mm512_shuffle_epi8(a, _mm512_broadcast_i32x4(places));
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), split);
}
INLINE vf add_neighbours(vf a, vf b) { return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd)); }
// The sums of the low and of the high half of each of W / 2 vectors.
INLINE vf half_sums(const vf* x) {
  const vf a = add_neighbours(add_neighbours(x[0], x[1]), add_neighbours(x[2], x[3]));
  const vf b = add_neighbours(add_neighbours(x[4], x[5]), add_neighbours(x[6], x[7]));
  const vf sums = add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15), sums);
}
INLINE vf load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

INLINE vmask lanes_between(int low, int high) {  // lanes low <= i < high
  uint32_t below_high = high >= 16 ? 0xffffu : high <= 0 ? 0u : (1u << high) - 1;
  uint32_t below_low = low >= 16 ? 0xffffu : low <= 0 ? 0u : (1u << low) - 1;
  return static_cast<vmask>(below_high & ~below_low);
}
INLINE vmask lanes_of(uint32_t bits) { return static_cast<vmask>(bits); }  // the lanes whose bit is set
INLINE vmask greater(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
INLINE vf select(vmask m, vf a, vf b) { return _mm512_mask_blend_ps(m, b, a); }
INLINE vi select_i(vmask m, vi a, vi b) { return _mm512_mask_blend_epi32(m, b, a); }
INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
INLINE void prefetch_l2(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

// NOTE: assembly, because GCC 12 copies and spills the accumulators of _mm512_dpbusd_epi32 (half the speed).
INLINE vi dot_unsigned(vi acc, vi w, vi b) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(b));
  return acc;
}
INLINE w8_t load_w8(const uint8_t* p) { return _mm512_loadu_si512(p); }
INLINE w8_t signed_w8(vi a) { return _mm512_xor_si512(a, _mm512_set1_epi8(-128)); }  // of signed weights
INLINE vi dot_w8(vi acc, w8_t w, vi b) { return dot_unsigned(acc, w, b); }
// Products of steps (unsigned bytes) and signed bytes, four of them in 32 bits. Before lanes of kW4SumBits overflow,
// widen_w4 makes 32 bits of them.
INLINE vi mul_w4(vi w, vi b) { return dot_unsigned(zero_i(), w, b); }
INLINE vi dot_w4(vi acc, vi w, vi b) { return dot_unsigned(acc, w, b); }
INLINE vi widen_w4(vi sums) { return sums; }
INLINE vi low_nibbles(vi a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
INLINE vi high_nibbles(vi a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
// Bytes of a table of 16 at the indices in `nibbles`.
INLINE vi look_up(vi nibbles, const uint8_t* table) {
  const __m128i quarter = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(quarter), nibbles);
}
INLINE vi dot_s16(vi acc, vi w, vi b) {
  asm("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(b));
  return acc;
}

// The factor of dot_s16 that multiplies sums of dot_w4 by a number of 16 bits: the first or second of a pair.
INLINE vi sum_factor(vi pairs, int half) {
  return half ? _mm512_srli_epi32(pairs, 16) : _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff));
}

#if HEADRACE_NATIVE_BF16
// The factor of dot_bf16 in a vector of pairs: all of it, or its first or second numbers.
INLINE vi bf16_part(vi pairs, int) { return pairs; }
INLINE vf dot_bf16(vf acc, vi w, vi b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(w), "v"(b));
  return acc;
}
INLINE void store_bf16(uint16_t* p, vf a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(a));
}
// Rounds to bf16 and stores numbers as the other factor.
INLINE void store_bf16_inputs(void* p, vf a) { store_bf16(static_cast<uint16_t*>(p), a); }
#else
INLINE vi bf16_part(vi pairs, int part) {
  return part == 0 ? _mm512_slli_epi32(pairs, 16) : _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u)));
}
INLINE vf dot_bf16(vf acc, vi w, vi b) { return _mm512_fmadd_ps(_mm512_castsi512_ps(w), _mm512_castsi512_ps(b), acc); }
// Rounded to bf16 in the upper halves; the lower ones are arbitrary.
INLINE vi bf16_bits(vf a) {
  const vi bits = _mm512_castps_si512(a), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
}
INLINE void store_bf16(uint16_t* p, vf a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(bf16_bits(a), 16)));
}
INLINE void store_bf16_inputs(void* p, vf a) { store_i(p, bf16_part(bf16_bits(a), 1)); }
#endif
