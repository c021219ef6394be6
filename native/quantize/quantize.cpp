#include "quantize/quantize.hpp"

namespace hocket {

// The compiled copies of kernels.inl.
namespace scalar {
Quantizers quantizers();
}
#if defined(__x86_64__)
namespace avx2 {
Quantizers quantizers();
}
namespace avx512 {
Quantizers quantizers();
}
#endif

Quantizers quantizers([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512) return avx512::quantizers();
  if (isa == Isa::avx2) return avx2::quantizers();
#endif
  return scalar::quantizers();
}

}  // namespace hocket
