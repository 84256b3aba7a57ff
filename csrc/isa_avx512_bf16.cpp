#include <immintrin.h>

#define HEADRACE_ISA avx512_bf16
#define HEADRACE_ISA_NAME "avx512"
#define HEADRACE_SIMD_HEADER "simd/avx512.h"
#define HEADRACE_NATIVE_BF16 1
#include "isa.inl"
