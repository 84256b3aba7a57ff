#include <arm_neon.h>

#define HEADRACE_ISA neon
#define HEADRACE_ISA_NAME "neon"
#define HEADRACE_SIMD_HEADER "simd/neon.h"
#define HEADRACE_NATIVE_BF16 0
#define HEADRACE_I8MM 0
#include "isa.inl"
