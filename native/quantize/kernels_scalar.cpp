// The quantizers for every CPU.
#define HOCKET_ISA scalar
#include "quantize/kernels.inl"
