// The quantizers for x86-64 with AVX2; CMakeLists.txt gives this file its flags.
#define HOCKET_ISA avx2
#include "quantize/kernels.inl"
