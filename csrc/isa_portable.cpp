#define HEADRACE_ISA portable
#define HEADRACE_ISA_NAME "portable"
#define HEADRACE_SIMD_HEADER "simd/portable.h"
#define HEADRACE_NATIVE_BF16 0
#include "isa.inl"
