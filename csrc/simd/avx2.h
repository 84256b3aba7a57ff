// AVX2 + FMA + F16C primitives, with the products of AVX-VNNI where HEADRACE_VNNI is the prefix of their encoding.
// Included inside the namespace of one ISA; avx512.h documents them.
#pragma once

constexpr int W = 8;
constexpr int kRowsTwoTerms = 2;
constexpr int kRowsBf16 = 6;
constexpr int kBf16Parts = 2;
constexpr int kRowsAttention = 4;
constexpr int kWideAttentionRows = 2;
// A panel has two passes here, and its next one fills L1 (K 2048: 40 KB of W4). One tile gains 8-50 % from L2, in W4, W8
// and bf16 and from one row on; two tiles lose up to 15 % (Zen 4, one thread, weights in memory, windows in turns).
constexpr int kMinRowsFromL2 = 1, kMaxTilesFromL2 = 1;
#ifdef HEADRACE_VNNI
constexpr int kRowsInt = 6;
constexpr int kRowsNibbles = 5;
constexpr int kW8Bias = -128;
constexpr int kW4SumBits = 32;
#else
constexpr int kRowsInt = 3;
constexpr int kRowsNibbles = 4;
constexpr int kW8Bias = 0;  // dot_w8 is signed here
constexpr int kW4SumBits = 16;
#endif
constexpr bool kPairsRows = false;

using vf = __m256;
using vi = __m256i;
using vmask = __m256;

INLINE vf zero_f() { return _mm256_setzero_ps(); }
INLINE vf set_f(float x) { return _mm256_set1_ps(x); }
INLINE vf load_f(const float* p) { return _mm256_loadu_ps(p); }
INLINE void store_f(float* p, vf x) { _mm256_storeu_ps(p, x); }
INLINE vf add(vf a, vf b) { return _mm256_add_ps(a, b); }
INLINE vf sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
INLINE vf mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
INLINE vf div(vf a, vf b) { return _mm256_div_ps(a, b); }
INLINE vf fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vf max(vf a, vf b) { return _mm256_max_ps(a, b); }
INLINE vf min(vf a, vf b) { return _mm256_min_ps(a, b); }
INLINE vf abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
INLINE vf round(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vf scale2(vf a, vf n) {
  vi exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(a, _mm256_castsi256_ps(exponent));
}
INLINE float sum(vf a) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
INLINE float max_of(vf a) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

INLINE vi zero_i() { return _mm256_setzero_si256(); }
INLINE vi set_i(int32_t x) { return _mm256_set1_epi32(x); }
INLINE vi load_i(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
INLINE void store_i(void* p, vi x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
INLINE vi add_i(vi a, vi b) { return _mm256_add_epi32(a, b); }
INLINE int32_t sum_i(vi a) {
  __m128i x = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
INLINE vi bcast4(const void* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return _mm256_set1_epi32(x);
}
INLINE vf to_f(vi a) { return _mm256_cvtepi32_ps(a); }
INLINE vi round_i(vf a) { return _mm256_cvtps_epi32(a); }
INLINE __m128i pack_s16(vi a) { return _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1)); }
INLINE void store_s16(int16_t* p, vi a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), pack_s16(a)); }
INLINE void store_s8(int8_t* p, vi a) {
  __m128i x = pack_s16(a);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(x, x));
}
INLINE vi load_s8_as_s16(const int8_t* p) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
INLINE vi load_twice(const void* p) { return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
INLINE vi split_lanes(vi a, __m128i places) {
  return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(a, _mm256_broadcastsi128_si256(places)), 0xd8);
}
INLINE vi split_words(vi a) { return split_lanes(a, _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15)); }
INLINE vi split_bytes(vi a) { return split_lanes(a, _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15)); }
INLINE vf half_sums(const vf* x) {
  const vf sums = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
  return _mm256_permutevar8x32_ps(sums, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
INLINE vf load_f16(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }

INLINE vmask lanes_between(int low, int high) {
  vi lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  vi below_high = _mm256_cmpgt_epi32(_mm256_set1_epi32(high), lane);
  vi below_low = _mm256_cmpgt_epi32(_mm256_set1_epi32(low), lane);
  return _mm256_castsi256_ps(_mm256_andnot_si256(below_low, below_high));
}
INLINE vmask lanes_of(uint32_t bits) {
  const vi bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const vi set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int32_t>(bits)), bit);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, bit));
}
INLINE vmask greater(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
INLINE vf select(vmask m, vf a, vf b) { return _mm256_blendv_ps(b, a, m); }
INLINE vi select_i(vmask m, vi a, vi b) { return _mm256_blendv_epi8(b, a, _mm256_castps_si256(m)); }
INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
INLINE void prefetch_l2(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

// NOTE: assembly, because GCC 12 turns sums of intrinsics into trees and spills all products (two thirds of the speed).
INLINE vi add_s16(vi acc, vi x) {
  asm("vpaddw %1, %0, %0" : "+x"(acc) : "x"(x));
  return acc;
}
INLINE vi add_s32(vi acc, vi x) {
  asm("vpaddd %1, %0, %0" : "+x"(acc) : "x"(x));
  return acc;
}
#ifdef HEADRACE_VNNI
using w8_t = vi;
INLINE vi dot_unsigned(vi acc, vi w, vi b) {
  asm(HEADRACE_VNNI " vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(w), "x"(b));
  return acc;
}
INLINE w8_t load_w8(const uint8_t* p) { return load_i(p); }
INLINE w8_t signed_w8(vi a) { return _mm256_xor_si256(a, _mm256_set1_epi8(-128)); }
INLINE vi dot_w8(vi acc, w8_t w, vi b) { return dot_unsigned(acc, w, b); }
INLINE vi mul_w4(vi w, vi b) { return dot_unsigned(zero_i(), w, b); }
INLINE vi dot_w4(vi acc, vi w, vi b) { return dot_unsigned(acc, w, b); }
INLINE vi widen_w4(vi sums) { return sums; }
INLINE vi dot_s16(vi acc, vi w, vi b) {
  asm(HEADRACE_VNNI " vpdpwssd %2, %1, %0" : "+x"(acc) : "x"(w), "x"(b));
  return acc;
}
INLINE vi sum_factor(vi pairs, int half) {
  return half ? _mm256_srli_epi32(pairs, 16) : _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff));
}
#else
struct w8_t {
  vi weight, magnitude;
};
INLINE vi sum_pairs(vi products16) { return _mm256_madd_epi16(products16, _mm256_set1_epi16(1)); }
// Exact: |w| <= 128 and |b| <= 127, so two products fit in 16 bits.
INLINE w8_t signed_w8(vi a) { return {a, _mm256_abs_epi8(a)}; }
INLINE w8_t load_w8(const uint8_t* p) { return signed_w8(_mm256_xor_si256(load_i(p), _mm256_set1_epi8(-128))); }
INLINE vi dot_w8(vi acc, w8_t w, vi b) {
  return add_s32(acc, sum_pairs(_mm256_maddubs_epi16(w.magnitude, _mm256_sign_epi8(b, w.weight))));
}
INLINE vi mul_w4(vi w, vi b) { return _mm256_maddubs_epi16(w, b); }
INLINE vi dot_w4(vi acc, vi w, vi b) { return add_s16(acc, mul_w4(w, b)); }
INLINE vi widen_w4(vi sums) { return sum_pairs(sums); }
INLINE vi dot_s16(vi acc, vi w, vi b) { return add_s32(acc, _mm256_madd_epi16(w, b)); }
INLINE vi sum_factor(vi pairs, int half) {
  const __m128i first = _mm_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13);
  const __m128i places = half ? _mm_add_epi8(first, _mm_set1_epi8(2)) : first;
  return _mm256_shuffle_epi8(pairs, _mm256_broadcastsi128_si256(places));
}
#endif
INLINE vi low_nibbles(vi a) { return _mm256_and_si256(a, _mm256_set1_epi8(15)); }
INLINE vi high_nibbles(vi a) { return _mm256_and_si256(_mm256_srli_epi16(a, 4), _mm256_set1_epi8(15)); }
// Bytes of a table of 16 at the indices in `nibbles`.
INLINE vi look_up(vi nibbles, const uint8_t* table) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(half), nibbles);
}

INLINE vi bf16_part(vi pairs, int part) {
  return part == 0 ? _mm256_slli_epi32(pairs, 16) : _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u)));
}
INLINE vf dot_bf16(vf acc, vi w, vi b) { return _mm256_fmadd_ps(_mm256_castsi256_ps(w), _mm256_castsi256_ps(b), acc); }
// Rounded to bf16 in the upper halves; the lower ones are arbitrary.
INLINE vi bf16_bits(vf a) {
  const vi bits = _mm256_castps_si256(a), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}
INLINE void store_bf16(uint16_t* p, vf a) {
  const vi rounded = _mm256_srli_epi32(bf16_bits(a), 16);
  const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}
INLINE void store_bf16_inputs(void* p, vf a) { store_i(p, bf16_part(bf16_bits(a), 1)); }
