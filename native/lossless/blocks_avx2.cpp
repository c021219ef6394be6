// The blocks for x86-64 with AVX2; CMakeLists.txt gives this file its flags.
#define HOCKET_ISA avx2
#define HOCKET_VECTOR_BYTES 32
#include "lossless/blocks.inl"
