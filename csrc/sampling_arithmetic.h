// The arithmetic of the sampler that must be bit-identical on every CPU and in numpy: masses and random numbers.
// Included by sampling.cpp only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

// A fused multiply-add rounds once where numpy rounds twice, so this file is also compiled with -ffp-contract=off.
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

// The loops over the vocabulary are compiled for several CPUs; they use integers and maxima, so all agree bit for bit.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define HEADRACE_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define HEADRACE_CLONES
#endif

namespace headrace {
namespace {

constexpr int32_t kBlock = 64;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLowestExponent = -60.0f;
constexpr float kNoMassExponent = -28.5f;  // exp of less rounds to mass 0
constexpr int32_t kMassBits = 40;
constexpr uint64_t kBestMass = uint64_t{1} << kMassBits;
constexpr double kRounder = 4503599627370496.0;       // 2^52: adding it rounds to an integer
constexpr uint64_t kRounderBits = 0x4330000000000000;  // its bits; the integer appears below them
constexpr float kSmallRounder = 12582912.0f;           // 1.5 * 2^23, the same for single precision
constexpr int32_t kSmallRounderBits = 0x4B400000;

template <typename To, typename From>
inline To bits_of(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

// exp(exponent) * 2^40 as an integer; `masses` in inference/runner/sampling.py has the same operations.
inline uint64_t mass_of(float exponent) {
  float x = exponent > kLowestExponent ? exponent : kLowestExponent;
  float rounded = x * 1.44269504f + kSmallRounder;
  float power = rounded - kSmallRounder;
  float r = x - power * 0.693359375f;
  r = r - power * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  float value = p * (r * r) + r + 1.0f;
  int32_t power_bits = (bits_of<int32_t>(rounded) - kSmallRounderBits + kMassBits + 127) << 23;
  float scaled = value * bits_of<float>(power_bits);
  return bits_of<uint64_t>(static_cast<double>(scaled) + kRounder) - kRounderBits;
}

// --- loops over the vocabulary, eight tokens at a time

typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));
typedef double Doubles __attribute__((vector_size(64)));
typedef uint64_t Masses __attribute__((vector_size(64)));
constexpr int32_t kLanes = 8;

// `mass_of` for eight exponents.
[[gnu::always_inline]] inline void get_masses(const Floats& exponents, Masses& masses) {
  Floats x = exponents > kLowestExponent ? exponents : Floats{} + kLowestExponent;
  Floats rounded = x * 1.44269504f + kSmallRounder;
  Floats power = rounded - kSmallRounder;
  Floats r = x - power * 0.693359375f;
  r = r - power * -2.12194440e-4f;
  Floats p = Floats{} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  Floats value = p * (r * r) + r + 1.0f;
  Ints power_bits = (reinterpret_cast<Ints>(rounded) - kSmallRounderBits + kMassBits + 127) << 23;
  Floats scaled = value * reinterpret_cast<Floats>(power_bits);
  masses = reinterpret_cast<Masses>(__builtin_convertvector(scaled, Doubles) + kRounder) - kRounderBits;
}

// Returns the logits of a block; an incomplete block is copied and padded with -inf.
[[gnu::always_inline]] inline const float* whole_block(const float* logits, int32_t vocab, int32_t start,
                                                       float* padded) {
  if (start + kBlock <= vocab) return logits + start;
  std::fill_n(padded, kBlock, -kInfinity);
  std::copy_n(logits + start, vocab - start, padded);
  return padded;
}

[[gnu::always_inline]] inline uint64_t sum_of(const Masses& masses) {
  uint64_t sum = 0;
  for (int32_t lane = 0; lane < kLanes; ++lane) sum += masses[lane];
  return sum;
}

// Finds the best logit of each block. Returns false if a logit is NaN or +inf.
HEADRACE_CLONES bool find_block_max(const float* logits, int32_t vocab, float* block_max) {
  Ints bad{};
  for (int32_t start = 0; start < vocab; start += kBlock) {
    float padded[kBlock];
    const float* block = whole_block(logits, vocab, start, padded);
    Floats best = Floats{} - kInfinity;
    for (int32_t i = 0; i < kBlock; i += kLanes) {
      Floats values;
      std::memcpy(&values, block + i, sizeof(values));
      bad |= ~(values < kInfinity);
      best = values > best ? values : best;
    }
    float block_best = best[0];
    for (int32_t lane = 1; lane < kLanes; ++lane) block_best = std::max(block_best, best[lane]);
    block_max[start / kBlock] = block_best;
  }
  int32_t any_bad = 0;
  for (int32_t lane = 0; lane < kLanes; ++lane) any_bad |= bad[lane];
  return any_bad == 0;
}

// Computes the mass of each block for exponents (logit - best) * inverse_temperature; returns the total mass.
HEADRACE_CLONES uint64_t find_block_mass(const float* logits, int32_t vocab, float best, float inverse_temperature,
                                         uint64_t* block_mass) {
  uint64_t total = 0;
  for (int32_t start = 0; start < vocab; start += kBlock) {
    float padded[kBlock];
    const float* block = whole_block(logits, vocab, start, padded);
    Masses sums{};
    for (int32_t i = 0; i < kBlock; i += kLanes) {
      Floats values;
      std::memcpy(&values, block + i, sizeof(values));
      Masses masses;
      get_masses((values - best) * inverse_temperature, masses);
      sums += masses;
    }
    block_mass[start / kBlock] = sum_of(sums);
    total += block_mass[start / kBlock];
  }
  return total;
}

// Returns the mass of the tokens whose exponent is at least `lowest`.
HEADRACE_CLONES uint64_t find_mass_above(const float* logits, int32_t vocab, float best, float inverse_temperature,
                                         float lowest) {
  Masses sums{};
  for (int32_t start = 0; start < vocab; start += kBlock) {
    float padded[kBlock];
    const float* block = whole_block(logits, vocab, start, padded);
    for (int32_t i = 0; i < kBlock; i += kLanes) {
      Floats values;
      std::memcpy(&values, block + i, sizeof(values));
      Floats exponents = (values - best) * inverse_temperature;
      Masses masses;
      get_masses(exponents >= lowest ? exponents : Floats{} + kLowestExponent, masses);
      sums += masses;
    }
  }
  return sum_of(sums);
}

// 64 random bits from seed and position: the first half of Philox4x32-10 (Salmon et al. 2011).
inline uint64_t random_bits(uint64_t seed, uint64_t position) {
  uint32_t c0 = static_cast<uint32_t>(position), c1 = static_cast<uint32_t>(position >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    uint64_t low = uint64_t{c0} * 0xD2511F53u, high = uint64_t{c2} * 0xCD9E8D57u;
    c0 = static_cast<uint32_t>(high >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(high);
    c2 = static_cast<uint32_t>(low >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(low);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c0 | uint64_t{c1} << 32;
}

// A random number in [0, limit).
inline uint64_t random_below(uint64_t seed, uint64_t position, uint64_t limit) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(random_bits(seed, position)) * limit) >> 64);
}

}  // namespace
}  // namespace headrace
