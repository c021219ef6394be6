// The portable kernels: 16-byte vectors, which every 64-bit CPU has (SSE2, NEON).
#define HOCKET_ISA scalar
#define HOCKET_VECTOR_BYTES 16
#include "reduce/kernels.inl"
