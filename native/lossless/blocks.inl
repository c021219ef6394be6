// An array is a sequence of chunks. A chunk begins with a byte that says which of its elements follow: all, those that
// a bitmap marks, or none, since all are zero. They follow in blocks; a block begins with a byte that says how.
#include "lossless/floats.inl"
#include "lossless/integers.inl"
#include "lossless/zeros.inl"

namespace hocket::HOCKET_ISA {
namespace {

enum : uint8_t { kAll, kMarked, kZeros };  // what follows of a chunk

// Writes a block of at most kBlock elements; behind them, as many as whole vectors need may be overwritten.
template <class Type>
INLINE void pack_block(typename Type::Bits* elements, uint64_t n, Writer& out) {
  using Bits = typename Type::Bits;
  const uint64_t raw = n * sizeof(Bits), rows = num_rows<Bits>(n);
  Bits saved[Lanes<Bits>::kPerRow];  // what is behind the elements
  const uint64_t num_behind = rows * Lanes<Bits>::kPerRow - n;
  __builtin_memcpy(saved, elements + n, num_behind * sizeof(Bits));
  for (uint64_t i = 0; i < num_behind; ++i) elements[n + i] = elements[0];
  Vec<Bits> differs{};
  for_vectors<Bits>(rows, [&](uint64_t i) { differs |= load<Bits>(elements + i) ^ elements[0]; });
  bool is_packed = false;
  if (or_of<Bits>(differs) == 0) {
    out.add(kEqual);
    out.add(elements[0]);
    is_packed = true;
  } else if constexpr (Type::kIsFloat) {
    is_packed = pack_floats<Type>(elements, n, raw + 1, out);
  } else {
    is_packed = pack_integers<Type>(elements, n, raw + 1, out);
  }
  __builtin_memcpy(elements + n, saved, num_behind * sizeof(Bits));
  if (is_packed) return;
  out.add(kRaw);
  out.add_all(elements, raw);
}

// Reads a block; behind its elements, as many as whole vectors need are overwritten.
template <class Type>
INLINE bool unpack_block(Reader& in, typename Type::Bits* elements, uint64_t n) {
  using Bits = typename Type::Bits;
  uint8_t how = 0;
  if (!in.read(how)) return false;
  if (how == kRaw) {
    const uint8_t* raw = in.take(n * sizeof(Bits));
    if (raw != nullptr) __builtin_memcpy(elements, raw, n * sizeof(Bits));
    return raw != nullptr;
  }
  if (how == kEqual) {
    Bits equal = 0;
    if (!in.read(equal)) return false;
    for (uint64_t i = 0; i < n; ++i) elements[i] = equal;
    return true;
  }
  if constexpr (Type::kIsFloat)
    return how <= kPackedAndListed && unpack_floats<Type>(in, how == kPackedAndListed, elements, n);
  else
    return how == kPacked && unpack_integers<Type>(in, elements, n);
}

// A bitmap has a bit for each element, and a zero that stays is listed.
template <class Type>
INLINE bool is_worth_marks(uint64_t num_zeros, uint64_t n) {
  return num_zeros * (8 * sizeof(typename Type::Bits) / 2 + 8) > n;
}

template <class Type>
uint64_t pack(const uint8_t* from, uint64_t n, uint8_t* to) {
  using Bits = typename Type::Bits;
  Writer out{to};
  Elements<Bits, kChunk> chunk, marked;
  uint8_t marks[kChunk / 8];
  for (uint64_t begin = 0; begin < n; begin += kChunk) {
    const uint64_t size = n - begin < kChunk ? n - begin : kChunk;
    __builtin_memcpy(chunk.of, from + begin * sizeof(Bits), size * sizeof(Bits));
    Bits* elements = chunk.of;
    uint64_t count = size;
    const uint64_t num_zeros = count_zeros(chunk.of, size);
    if (num_zeros == size) {
      out.add(kZeros);
      continue;
    }
    if (Type::kIsFloat && is_worth_marks<Type>(num_zeros, size)) {
      count = take_marked(chunk.of, size, marks, marked.of);
      elements = marked.of;
      out.add(kMarked);
      out.add_all(marks, (size + 7) / 8);
    } else {
      out.add(kAll);
    }
    for (uint64_t at = 0; at < count; at += kBlock)
      pack_block<Type>(elements + at, count - at < kBlock ? count - at : kBlock, out);
  }
  return static_cast<uint64_t>(out.at - to);
}

template <class Type>
bool unpack(const uint8_t* from, uint64_t nbytes, uint8_t* to, uint64_t n) {
  using Bits = typename Type::Bits;
  Reader in{from, nbytes};
  Elements<Bits, kChunk> chunk, marked;
  for (uint64_t begin = 0; begin < n; begin += kChunk) {
    const uint64_t size = n - begin < kChunk ? n - begin : kChunk;
    uint8_t what = 0;
    if (!in.read(what) || what > kZeros || (what == kMarked && !Type::kIsFloat)) return false;
    if (what == kZeros) {
      __builtin_memset(to + begin * sizeof(Bits), 0, size * sizeof(Bits));
      continue;
    }
    const uint8_t* marks = nullptr;
    uint64_t count = size;
    if (what == kMarked) {
      const uint64_t num_marks = (size + 7) / 8;
      marks = in.take(num_marks);
      if (marks == nullptr) return false;
      count = 0;
      for (uint64_t i = 0; i < num_marks; ++i) count += static_cast<uint64_t>(__builtin_popcount(marks[i]));
      if (count > size) return false;
    }
    Bits* elements = what == kMarked ? marked.of : chunk.of;
    for (uint64_t at = 0; at < count; at += kBlock)
      if (!unpack_block<Type>(in, elements + at, count - at < kBlock ? count - at : kBlock)) return false;
    if (what == kMarked) put_marked(marked.of, marks, size, chunk.of);
    __builtin_memcpy(to + begin * sizeof(Bits), chunk.of, size * sizeof(Bits));
  }
  return in.left == 0;
}

template <class Call>
INLINE auto with_type(DType dtype, Call call) {
  switch (dtype) {
    case DType::float16:
      return call(Float<uint16_t, 5, 10>{});
    case DType::bfloat16:
      return call(Float<uint16_t, 8, 7>{});
    case DType::float32:
      return call(Float<uint32_t, 8, 23>{});
    case DType::float64:
      return call(Float<uint64_t, 11, 52>{});
    case DType::int8:
      return call(Integer<uint8_t, true>{});
    case DType::int16:
      return call(Integer<uint16_t, true>{});
    case DType::int32:
      return call(Integer<uint32_t, true>{});
    case DType::int64:
      return call(Integer<uint64_t, true>{});
    case DType::uint16:
      return call(Integer<uint16_t, false>{});
    case DType::uint32:
      return call(Integer<uint32_t, false>{});
    case DType::uint64:
      return call(Integer<uint64_t, false>{});
    default:
      return call(Integer<uint8_t, false>{});
  }
}

uint64_t pack_any(DType dtype, const uint8_t* elements, uint64_t n, uint8_t* out) {
  return with_type(dtype, [&](auto type) { return pack<decltype(type)>(elements, n, out); });
}

bool unpack_any(DType dtype, const uint8_t* in, uint64_t nbytes, uint8_t* elements, uint64_t n) {
  return with_type(dtype, [&](auto type) { return unpack<decltype(type)>(in, nbytes, elements, n); });
}

}  // namespace

Blocks blocks() { return {pack_any, unpack_any}; }

}  // namespace hocket::HOCKET_ISA
