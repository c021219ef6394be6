// The blocks for x86-64 with AVX-512 F, BW, DQ and VL; CMakeLists.txt gives this file its flags.
#define HOCKET_ISA avx512
#define HOCKET_VECTOR_BYTES 64
#include "lossless/blocks.inl"
