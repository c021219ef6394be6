// The quantizers for x86-64 with AVX-512 F, BW, DQ and VL; CMakeLists.txt gives this file its flags.
#define HOCKET_ISA avx512
#include "quantize/kernels.inl"
