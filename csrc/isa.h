// The kernels of every ISA, and the choice of those that this CPU can run.
#pragma once

#include <string>
#include <vector>

#include "step.h"

namespace headrace {

namespace portable {
extern const Kernels kernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kernels;
}
namespace avx_vnni {
extern const Kernels kernels;
}
namespace avx_vnni_evex {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
namespace avx512_bf16 {
extern const Kernels kernels;
}
#elif defined(__aarch64__)
namespace neon {
extern const Kernels kernels;
}
namespace neon_i8mm {
extern const Kernels kernels;
}
#endif

// Names of the isa_*.cpp that this build compiled (CMake: HEADRACE_KERNELS), best first.
std::vector<std::string> built_isas();

// Names of the ISAs that this CPU (and its operating system) can run, best first, e.g. avx512, avx2, portable.
std::vector<std::string> available_isas();

// Instruction sets that matter for the choice, as the CPU reports them, e.g. "avx512_vnni".
std::vector<std::string> cpu_features();

// Returns the kernels of an ISA, or the best ones for "". Throws std::invalid_argument if the CPU cannot run them.
const Kernels& select_kernels(const std::string& isa);

}  // namespace headrace
