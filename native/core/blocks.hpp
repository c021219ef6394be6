// Blocks of different sizes: which part of an array belongs to which rank in gatherv, scatterv, all_gatherv,
// reduce_scatterv and all_to_allv. All sizes are in bytes; blocks are contiguous, in rank order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace hocket {

struct Block {
  uint64_t offset;
  uint64_t nbytes;
};

using BlockOffsets = std::vector<uint64_t>;  // one per rank, and the end of the last block

inline Block block_of(const BlockOffsets& offsets, int rank) {
  const auto r = static_cast<size_t>(rank);
  return {offsets[r], offsets[r + 1] - offsets[r]};
}

inline uint64_t largest_block(const BlockOffsets& offsets) {
  uint64_t largest = 0;
  for (size_t r = 0; r + 1 < offsets.size(); ++r) largest = std::max(largest, offsets[r + 1] - offsets[r]);
  return largest;
}

struct Blocks {
  BlockOffsets in;   // empty if the input is one block
  BlockOffsets out;  // empty if the output is one block
  uint64_t in_nbytes = 0;
  uint64_t out_nbytes = 0;
  uint64_t agreed = 0;  // hash of the sizes that all members know
};

inline uint64_t mix_bits(uint64_t h) {
  h *= 0x9E3779B97F4A7C15ull;
  h = (h ^ (h >> 32)) * 0xD6E8FEB86659FD93ull;
  return h ^ (h >> 29);
}

// Hash of sizes that all members know.
inline uint64_t hash_of(const BlockOffsets& offsets) {
  uint64_t h = 0;
  for (const uint64_t each : offsets) h = mix_bits(h ^ each);
  return h;
}

// Checksum of sizes that only the sender and the receiver of a block know. Each block adds a weight at its sender and
// subtracts the same weight at its receiver. So the sum over all members is zero if every pair uses the same sizes;
// if not, it is zero in one case of 2^64.
inline uint64_t balance_of(const Blocks& blocks, int rank) {
  const auto weight = [](uint64_t from, uint64_t to, uint64_t nbytes) {
    return mix_bits(mix_bits(from << 32 | to) ^ nbytes);
  };
  const auto own = static_cast<uint64_t>(rank);
  uint64_t balance = 0;
  for (uint64_t peer = 0; peer + 1 < blocks.in.size(); ++peer) {
    balance += weight(own, peer, block_of(blocks.in, static_cast<int>(peer)).nbytes);
    balance -= weight(peer, own, block_of(blocks.out, static_cast<int>(peer)).nbytes);
  }
  return balance;
}

// "3, 0, 5": the number of items of each block; at most the first 16.
inline std::string items_text(const BlockOffsets& offsets, uint64_t itemsize) {
  constexpr size_t kMost = 16;
  std::string text;
  for (size_t r = 0; r + 1 < offsets.size() && r < kMost; ++r)
    text += (r ? ", " : "") + std::to_string((offsets[r + 1] - offsets[r]) / itemsize);
  return offsets.size() > kMost + 1 ? text + ", ..." : text;
}

}  // namespace hocket
