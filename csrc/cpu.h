// What the CPU and its operating system can run. Shared by `dispatch.cpp` and, at build time, `detect_isa.cpp`.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace headrace {

#if defined(__x86_64__)
// __builtin_cpu_supports asks CPUID and, for the wide registers, whether the operating system saves them (XCR0).
// Clang 14 does not know the name of F16C, whose registers AVX2 has.
inline bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & 1u << 29);
}

inline bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }

// Not all versions of GCC and Clang that compile this know the name of AVX-VNNI.
inline bool has_avx_vnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!has_avx2() || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || eax < 1) return false;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & 1u << 4);
}

inline bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

inline bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#elif defined(__aarch64__) && defined(__linux__)
// What the kernel reports: dot products of bytes (Armv8.2: Graviton 2, Cortex-A76), and USDOT (Graviton 3, Neoverse N2).
inline bool has_neon() { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP; }
inline bool has_neon_i8mm() { return has_neon() && (getauxval(AT_HWCAP2) & HWCAP2_I8MM); }
#elif defined(__aarch64__)
inline bool has_neon() { return false; }
inline bool has_neon_i8mm() { return false; }
#endif

// Returns the name of the best isa_*.cpp for this CPU, compiled or not.
inline const char* best_isa() {
#if defined(__x86_64__)
  if (has_avx512_bf16()) return "avx512_bf16";
  if (has_avx512()) return "avx512";
  if (has_avx_vnni()) return "avx_vnni";
  if (has_avx2()) return "avx2";
#elif defined(__aarch64__)
  if (has_neon_i8mm()) return "neon_i8mm";
  if (has_neon()) return "neon";
#endif
  return "portable";
}

}  // namespace headrace
