// Conversions of float16 and bfloat16 to float32 and back, on vectors. Included by kernels.inl in its anonymous
// namespace.
//
// Narrowing expects NaN in its canonical form (see `canonical` in kernels.inl), which survives the arithmetic below.

// g++ 12 splits conversions between 16 and 32 bits into halves although AVX-512 has a single instruction for them. It
// also warns about the undefined operand inside the plain AVX-512 intrinsics, so this code uses the zeroing intrinsics,
// with all lanes on.
[[maybe_unused]] constexpr uint16_t kAllLanes = 0xffff;

template <int kLanes>
INLINE Vec<uint32_t, kLanes> zero_extend(Vec<uint16_t, kLanes> x) {
#if defined(__AVX512F__)
  if constexpr (kLanes == 16) return (Vec<uint32_t, 16>)_mm512_maskz_cvtepu16_epi32(kAllLanes, (__m256i)x);
#endif
#if defined(__AVX2__)
  if constexpr (kLanes == 8) return (Vec<uint32_t, 8>)_mm256_cvtepu16_epi32((__m128i)x);
#endif
  return __builtin_convertvector(x, Vec<uint32_t, kLanes>);
}

template <int kLanes>
INLINE Vec<uint16_t, kLanes> truncate(Vec<uint32_t, kLanes> x) {
#if defined(__AVX512F__)
  if constexpr (kLanes == 16) return (Vec<uint16_t, 16>)_mm512_maskz_cvtepi32_epi16(kAllLanes, (__m512i)x);
#endif
  return __builtin_convertvector(x, Vec<uint16_t, kLanes>);
}

struct BFloat16 {
  using Storage = uint16_t;
  using Accumulator = float;

  template <int kLanes>
  INLINE static Vec<float, kLanes> widen(Vec<uint16_t, kLanes> x) {
    return (Vec<float, kLanes>)(zero_extend<kLanes>(x) << 16);
  }

  // Adding 0x7fff, or 0x8000 if the kept part is odd, carries into the upper half exactly when rounding to nearest even
  // rounds up. A carry out of the mantissa raises the exponent; out of the largest exponent, it gives infinity.
  template <int kLanes>
  INLINE static Vec<uint16_t, kLanes> narrow(Vec<float, kLanes> x) {
    const auto bits = (Vec<uint32_t, kLanes>)x;
    return truncate<kLanes>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
};

#if defined(__F16C__)

struct Float16 {
  using Storage = uint16_t;
  using Accumulator = float;

  // The instruction converts at least four lanes; fewer are padded with zeros.
  template <int kLanes>
  INLINE static Vec<float, kLanes> widen(Vec<uint16_t, kLanes> x) {
    if constexpr (kLanes == 16) {
      return (Vec<float, 16>)_mm512_maskz_cvtph_ps(kAllLanes, (__m256i)x);
    } else if constexpr (kLanes == 8) {
      return (Vec<float, 8>)_mm256_cvtph_ps((__m128i)x);
    } else {
      const auto padded = (__m128i)resize<uint16_t, 8, kLanes>(x);
      return resize<float, kLanes, 4>((Vec<float, 4>)_mm_cvtph_ps(padded));
    }
  }

  template <int kLanes>
  INLINE static Vec<uint16_t, kLanes> narrow(Vec<float, kLanes> x) {
    if constexpr (kLanes == 16) {
      return (Vec<uint16_t, 16>)_mm512_maskz_cvtps_ph(kAllLanes, (__m512)x, _MM_FROUND_TO_NEAREST_INT);
    } else if constexpr (kLanes == 8) {
      return (Vec<uint16_t, 8>)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
    } else {
      const auto padded = (__m128)resize<float, 4, kLanes>(x);
      return resize<uint16_t, kLanes, 8>((Vec<uint16_t, 8>)_mm_cvtps_ph(padded, _MM_FROUND_TO_NEAREST_INT));
    }
  }
};

#else

// After F. Giesen, "Half to float done quick" and "float to half conversions" (2012).
struct Float16 {
  using Storage = uint16_t;
  using Accumulator = float;

  // Exponent and mantissa, shifted to their place in a float32, give a value that is too small by 2^112: the
  // multiplication corrects this exactly, and normalises subnormal numbers. Infinity and NaN then give 65536 or more.
  template <int kLanes>
  INLINE static Vec<float, kLanes> widen(Vec<uint16_t, kLanes> x) {
    using Bits = Vec<uint32_t, kLanes>;
    const Bits half = zero_extend<kLanes>(x);
    const auto magnitude = (Vec<float, kLanes>)((half & 0x7fffu) << 13) * 0x1p112f;
    const Bits not_finite = (Bits)(magnitude >= 0x1p16f) & 0x7f800000u;
    return (Vec<float, kLanes>)((Bits)magnitude | not_finite | (half & 0x8000u) << 16);
  }

  template <int kLanes>
  INLINE static Vec<uint16_t, kLanes> narrow(Vec<float, kLanes> x) {
    using Bits = Vec<uint32_t, kLanes>;
    const Bits bits = (Bits)x;
    const Bits magnitude = bits & 0x7fffffffu;
    // Below 2^-14 the result is subnormal: with 0.5 added, the float32 addition rounds at the right bit.
    const Bits subnormal = (Bits)((Vec<float, kLanes>)magnitude + 0.5f) - 0x3f000000u;
    // Otherwise rebias the exponent by -112 and round as bfloat16 does; 65520 and more carry into infinity.
    const Bits normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // Values from 2^16 are infinity; the canonical NaN has only the highest bit of its mantissa set.
    const Bits not_finite = ((Bits)(magnitude > 0x7f800000u) & 0x0200u) | 0x7c00u;
    const Bits finite = magnitude < (113u << 23) ? subnormal : normal;
    const Bits half = (magnitude < (143u << 23) ? finite : not_finite) | ((bits >> 16) & 0x8000u);
    return truncate<kLanes>(half);
  }
};

#endif
