#include <algorithm>
#include <stdexcept>

#include "cpu.h"
#include "isa.h"

namespace headrace {

namespace {

struct Variant {
  const char* isa;  // of isa_*.cpp
  bool runs_here;
  const Kernels& kernels;
};

// The variants of this build (CMake: HEADRACE_KERNELS), best first.
const std::vector<Variant>& variants() {
  static const std::vector<Variant> all = {
#if defined(HEADRACE_HAS_avx512_bf16)
      {"avx512_bf16", has_avx512_bf16(), avx512_bf16::kernels},
#endif
#if defined(HEADRACE_HAS_avx512)
      {"avx512", has_avx512(), avx512::kernels},
#endif
#if defined(HEADRACE_HAS_avx_vnni)
      {"avx_vnni", has_avx_vnni(), avx_vnni::kernels},
#endif
#if defined(HEADRACE_HAS_avx2)
      {"avx2", has_avx2(), avx2::kernels},
#endif
#if defined(HEADRACE_HAS_avx_vnni_evex)
      {"avx_vnni_evex", has_avx512(), avx_vnni_evex::kernels},
#endif
#if defined(HEADRACE_HAS_neon_i8mm)
      {"neon_i8mm", has_neon_i8mm(), neon_i8mm::kernels},
#endif
#if defined(HEADRACE_HAS_neon)
      {"neon", has_neon(), neon::kernels},
#endif
      {"portable", true, portable::kernels},
  };
  return all;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

std::vector<std::string> built_isas() {
  std::vector<std::string> names;
  for (const Variant& variant : variants()) names.push_back(variant.isa);
  return names;
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Variant& variant : variants()) {
    const std::string name = variant.kernels.name;
    if (variant.runs_here && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

std::vector<std::string> cpu_features() {
  std::vector<std::string> names;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) names.push_back("avx2");
  if (__builtin_cpu_supports("fma")) names.push_back("fma");
  if (has_f16c()) names.push_back("f16c");
  if (has_avx_vnni()) names.push_back("avx_vnni");
  if (__builtin_cpu_supports("avx512f")) names.push_back("avx512f");
  if (__builtin_cpu_supports("avx512bw")) names.push_back("avx512bw");
  if (__builtin_cpu_supports("avx512dq")) names.push_back("avx512dq");
  if (__builtin_cpu_supports("avx512vl")) names.push_back("avx512vl");
  if (__builtin_cpu_supports("avx512vnni")) names.push_back("avx512_vnni");
  if (__builtin_cpu_supports("avx512bf16")) names.push_back("avx512_bf16");
#elif defined(__aarch64__)
  if (has_neon()) names.push_back("asimddp");
  if (has_neon_i8mm()) names.push_back("i8mm");
#endif
  return names;
}

const Kernels& select_kernels(const std::string& isa) {
  for (const Variant& variant : variants()) {
    if (variant.runs_here && (isa.empty() || isa == variant.kernels.name)) return variant.kernels;
  }
  throw std::invalid_argument("isa is " + isa + ", which this CPU or build does not support; expected one of " +
                              joined(available_isas()));
}

}  // namespace headrace
