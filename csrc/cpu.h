// What the CPU and its operating system can run. Shared by `dispatch.cpp` and, at build time, `detect_isa.cpp`.
#pragma once

namespace headrace {

#if defined(__x86_64__)
// __builtin_cpu_supports asks CPUID and, for the wide registers, whether the operating system saves them (XCR0).
inline bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

inline bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

inline bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

// Returns the name of the best isa_*.cpp for this CPU, compiled or not.
inline const char* best_isa() {
#if defined(__x86_64__)
  if (has_avx512_bf16()) return "avx512_bf16";
  if (has_avx512()) return "avx512";
  if (has_avx2()) return "avx2";
#endif
  return "portable";
}

}  // namespace headrace
