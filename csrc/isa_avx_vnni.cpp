#include <immintrin.h>

#define HEADRACE_ISA avx_vnni
#define HEADRACE_ISA_NAME "avx_vnni"
#define HEADRACE_SIMD_HEADER "simd/avx2.h"
#define HEADRACE_VNNI "%{vex%}"
#define HEADRACE_NATIVE_BF16 0
#include "isa.inl"
