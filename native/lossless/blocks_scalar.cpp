// The blocks for every CPU.
#define HOCKET_ISA scalar
#define HOCKET_VECTOR_BYTES 16
#include "lossless/blocks.inl"
