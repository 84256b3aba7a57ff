// The kernels of every ISA, and which of them run here.
#pragma once

#include <string>
#include <vector>

#include "model.h"

namespace headrace {

namespace portable {
extern const Kernels kernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
namespace avx512_bf16 {
extern const Kernels kernels;
}
#endif

// Names of the ISAs that this CPU (and its operating system) can run, best first: avx512, avx2, portable.
std::vector<std::string> available_isas();

// Instruction sets that decide about the choice, as the CPU reports them, e.g. "avx512_vnni".
std::vector<std::string> cpu_features();

// Throws std::invalid_argument if the CPU cannot run it, or if there is no such ISA. Empty: the best one.
const Kernels& select_kernels(const std::string& isa);

}  // namespace headrace
