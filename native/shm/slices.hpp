// How arrays and blocks are divided: into slices, one per rank, and into consecutive pieces.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/blocks.hpp"
#include "core/units.hpp"

namespace hocket {

inline constexpr uint64_t kPieceBytes = 256 << 10;  // a lane's limit per step, so that other lanes run too

struct Slice {
  size_t begin;
  size_t nbytes;
  size_t end() const { return begin + nbytes; }
};

// The part of an array that rank `owner` reduces; bounds are multiples of a cache line, so no line has two writers.
inline Slice slice_of(size_t nbytes, int owner, int size) {
  const size_t lines = div_up(nbytes, kLineBytes);
  const size_t n = static_cast<size_t>(size);
  const size_t o = static_cast<size_t>(owner);
  const size_t begin = std::min(nbytes, lines * o / n * kLineBytes);
  const size_t end = std::min(nbytes, lines * (o + 1) / n * kLineBytes);
  return {begin, end - begin};
}

// Piece k of a block; empty beyond its end.
inline Block piece_of(Block block, uint64_t k, uint64_t piece) {
  const uint64_t begin = std::min(block.nbytes, k * piece);
  return {block.offset + begin, std::min(piece, block.nbytes - begin)};
}

}  // namespace hocket
