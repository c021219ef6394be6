// The kernels for x86-64 with AVX2 and F16C; CMakeLists.txt gives this file its flags.
#define HOCKET_ISA avx2
#define HOCKET_VECTOR_BYTES 32
#include "reduce/kernels.inl"
