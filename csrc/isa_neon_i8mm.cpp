#include <arm_neon.h>

#define HEADRACE_ISA neon_i8mm
#define HEADRACE_ISA_NAME "neon_i8mm"
#define HEADRACE_SIMD_HEADER "simd/neon.h"
#define HEADRACE_NATIVE_BF16 0
#define HEADRACE_I8MM 1
#include "isa.inl"
