// The twin of isa_avx_vnni.cpp for tests on CPUs with AVX-512 and without AVX-VNNI: only the encoding of its products differs.
#include <immintrin.h>

#define HEADRACE_ISA avx_vnni_evex
#define HEADRACE_ISA_NAME "avx_vnni_evex"
#define HEADRACE_SIMD_HEADER "simd/avx2.h"
#define HEADRACE_VNNI "%{evex%}"
#define HEADRACE_NATIVE_BF16 0
#include "isa.inl"
