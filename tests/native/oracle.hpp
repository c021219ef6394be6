// Test data whose reductions are exact in every type, and the expected result of every collective.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "check.hpp"
#include "core/operation.hpp"

namespace hocket {

inline constexpr DType kOracleDTypes[] = {DType::float32, DType::float64, DType::int8,  DType::int16,
                                          DType::int32,   DType::int64,   DType::uint8, DType::boolean};

// Element `index` of rank `rank`: so small that every type holds every result exactly, or wraps around.
inline int64_t value(DType dtype, int rank, uint64_t index, uint64_t salt) {
  const uint64_t mixed = (static_cast<uint64_t>(rank) * 7 + index * 13 + (index >> 9) + salt) % 5;
  return static_cast<int64_t>(dtype == DType::boolean ? mixed & 1 : mixed);
}

inline double reduced(DType dtype, ReduceOp op, int size, uint64_t index, uint64_t salt) {
  int64_t result = value(dtype, 0, index, salt);
  for (int rank = 1; rank < size; ++rank) {
    const int64_t x = value(dtype, rank, index, salt);
    switch (op) {
      case ReduceOp::prod:
        result *= x;
        break;
      case ReduceOp::min:
        result = std::min(result, x);
        break;
      case ReduceOp::max:
        result = std::max(result, x);
        break;
      case ReduceOp::band:
        result &= x;
        break;
      case ReduceOp::bor:
        result |= x;
        break;
      case ReduceOp::bxor:
        result ^= x;
        break;
      case ReduceOp::land:
        result = result && x;
        break;
      case ReduceOp::lor:
        result = result || x;
        break;
      case ReduceOp::lxor:
        result = !result != !x;
        break;
      default:
        result += x;
    }
  }
  if (op != ReduceOp::avg) return static_cast<double>(result);
  return dtype == DType::float32 ? static_cast<double>(static_cast<float>(result) / static_cast<float>(size))
                                 : static_cast<double>(result) / size;
}

template <typename T>
void put_as(std::byte* at, double x) {
  T element;
  if constexpr (std::is_floating_point_v<T>)
    element = static_cast<T>(x);
  else
    element = static_cast<T>(static_cast<int64_t>(x));
  std::memcpy(at, &element, sizeof element);
}

inline void put(DType dtype, std::byte* array, uint64_t index, double x) {
  std::byte* at = array + index * itemsize(dtype);
  switch (dtype) {
    case DType::float32:
      return put_as<float>(at, x);
    case DType::float64:
      return put_as<double>(at, x);
    case DType::int16:
      return put_as<int16_t>(at, x);
    case DType::int32:
      return put_as<int32_t>(at, x);
    case DType::int64:
      return put_as<int64_t>(at, x);
    default:
      return put_as<uint8_t>(at, x);
  }
}

using Bytes = std::vector<std::byte>;

// Elements [begin, begin + count) of a rank's input.
inline Bytes input(DType dtype, int rank, uint64_t begin, uint64_t count, uint64_t salt) {
  Bytes bytes(count * itemsize(dtype));
  for (uint64_t i = 0; i < count; ++i)
    put(dtype, bytes.data(), i, static_cast<double>(value(dtype, rank, begin + i, salt)));
  return bytes;
}

inline Bytes reduction(DType dtype, ReduceOp op, int size, uint64_t begin, uint64_t count, uint64_t salt) {
  Bytes bytes(count * itemsize(dtype));
  for (uint64_t i = 0; i < count; ++i) put(dtype, bytes.data(), i, reduced(dtype, op, size, begin + i, salt));
  return bytes;
}

// Runs one collective of `count` elements (per block, if it has blocks) on one rank and checks the result.
template <typename Run>
void check_collective(OpKind kind, DType dtype, ReduceOp op, int root, uint64_t count, uint64_t salt, int rank,
                      int size, bool in_place, Run&& run) {
  const uint64_t nbytes = count * itemsize(dtype);
  const auto n = static_cast<uint64_t>(size);
  const auto me = static_cast<uint64_t>(rank);
  const bool blocks_in = kind == OpKind::reduce_scatter || kind == OpKind::all_to_all;
  const bool blocks_out = kind == OpKind::all_gather || kind == OpKind::split || kind == OpKind::all_to_all;
  Bytes in = input(dtype, rank, 0, blocks_in ? n * count : count, salt);
  Bytes out(blocks_out ? n * nbytes : nbytes, std::byte{0xee});
  Bytes expected;
  switch (kind) {
    case OpKind::all_reduce:
      expected = reduction(dtype, op, size, 0, count, salt);
      break;
    case OpKind::reduce:
      expected = rank == root ? reduction(dtype, op, size, 0, count, salt) : in;
      break;
    case OpKind::broadcast:
      expected = input(dtype, root, 0, count, salt);
      break;
    case OpKind::reduce_scatter:
      expected = reduction(dtype, op, size, me * count, count, salt);
      break;
    default:
      for (int peer = 0; peer < size; ++peer) {
        const Bytes block = input(dtype, peer, kind == OpKind::all_to_all ? me * count : 0, count, salt);
        expected.insert(expected.end(), block.begin(), block.end());
      }
  }
  const std::byte* from = in.data();
  std::byte* to = out.data();
  if (!blocks_in && !blocks_out) {
    out = in;  // these work in place
    from = to = out.data();
  } else if (in_place && (kind == OpKind::all_gather || kind == OpKind::split)) {
    std::copy(in.begin(), in.end(), out.begin() + static_cast<std::ptrdiff_t>(me * nbytes));
    from = out.data() + me * nbytes;
  } else if (in_place && kind == OpKind::reduce_scatter) {
    to = in.data() + me * nbytes;
  }
  run(Operation{.kind = kind,
                .dtype = dtype,
                .reduce = op,
                .root = has_root(kind) ? root : -1,
                .nbytes = nbytes,
                .in = from,
                .out = to});
  CHECK(expected.empty() || std::memcmp(to, expected.data(), expected.size()) == 0);
}

}  // namespace hocket
