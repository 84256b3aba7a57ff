#include <stdexcept>

#include "isa.h"

namespace headrace {

namespace {

#if defined(__x86_64__)
// __builtin_cpu_supports asks CPUID and, for the wide registers, whether the operating system saves them (XCR0).
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
#if defined(__x86_64__)
  if (has_avx512()) names.push_back("avx512");
  if (has_avx2()) names.push_back("avx2");
#endif
  names.push_back("portable");
  return names;
}

std::vector<std::string> cpu_features() {
  std::vector<std::string> names;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) names.push_back("avx2");
  if (__builtin_cpu_supports("fma")) names.push_back("fma");
  if (__builtin_cpu_supports("f16c")) names.push_back("f16c");
  if (__builtin_cpu_supports("avx512f")) names.push_back("avx512f");
  if (__builtin_cpu_supports("avx512bw")) names.push_back("avx512bw");
  if (__builtin_cpu_supports("avx512dq")) names.push_back("avx512dq");
  if (__builtin_cpu_supports("avx512vl")) names.push_back("avx512vl");
  if (__builtin_cpu_supports("avx512vnni")) names.push_back("avx512_vnni");
  if (__builtin_cpu_supports("avx512bf16")) names.push_back("avx512_bf16");
#endif
  return names;
}

const Kernels& select_kernels(const std::string& isa) {
  const std::vector<std::string> available = available_isas();
  const std::string chosen = isa.empty() ? available.front() : isa;
  bool is_available = false;
  for (const std::string& name : available) is_available |= name == chosen;
  if (!is_available) {
    throw std::invalid_argument("isa is " + chosen + ", which this CPU or build does not support; expected one of " +
                                joined(available));
  }
#if defined(__x86_64__)
  if (chosen == "avx512") return has_avx512_bf16() ? avx512_bf16::kernels : avx512::kernels;
  if (chosen == "avx2") return avx2::kernels;
#endif
  return portable::kernels;
}

}  // namespace headrace
