#include <immintrin.h>

#define HEADRACE_ISA avx2
#define HEADRACE_ISA_NAME "avx2"
#define HEADRACE_SIMD_HEADER "simd/avx2.h"
#define HEADRACE_NATIVE_BF16 0
#include "isa.inl"
