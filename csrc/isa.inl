// The body of every isa_*.cpp: all kernels in the namespace HEADRACE_ISA. No standard library templates in here:
// the linker merges their instantiations across files, and the surviving copy could use instructions a CPU lacks.
#define INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#define UNROLL _Pragma("GCC unroll 16")

#include "isa.h"
#include "step.h"
#include "team.h"

namespace headrace {
namespace HEADRACE_ISA {
namespace {

#include HEADRACE_SIMD_HEADER
// clang-format off: the order matters
#include "kernels/gemm.inl"
#include "kernels/low_bits.inl"
#include "kernels/rowops.inl"
#include "kernels/keys.inl"
#include "kernels/attention.inl"
#include "kernels/shared_keys.inl"
#include "kernels/attend.inl"
#include "kernels/layer.inl"
#include "kernels/heads.inl"
#include "kernels/products.inl"
#include "kernels/adapters.inl"
#include "kernels/routing.inl"
#include "kernels/experts.inl"
#include "kernels/latent_experts.inl"
#include "kernels/state.inl"
#include "kernels/delta.inl"
#include "kernels/ssd.inl"
#include "kernels/latent.inl"
#include "kernels/layer_inputs.inl"
#include "kernels/normed_experts.inl"
#include "kernels/step.inl"
#include "kernels/logits.inl"
#include "kernels/probes.inl"

}  // namespace

const Probes probes = {probe_quantize, probe_multiply, probe_compute, probe_read};
const Kernels kernels = {HEADRACE_ISA_NAME, HEADRACE_NATIVE_BF16, run_step, &probes};

}  // namespace HEADRACE_ISA
}  // namespace headrace
