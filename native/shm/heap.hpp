// User arrays in the memory that the ranks of a host share: other ranks read and write them in place, without copies.
//
// The second half of the host's segment is divided into one part per rank. Only the owner allocates in its part; its
// bookkeeping is in private memory. Every rank maps all parts at first use, each at a fixed address. So (rank, place in
// the part) identifies an array for all ranks. A place can be reused, but a block never moves.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "shm/segment.hpp"

namespace hocket {

class Heap {
 public:
  // Maps the parts of all ranks: `nbytes` of the segment from `begin`, which must be the begin of a huge page.
  // Allocates no pages. Throws ResourceExhausted.
  Heap(int segment, int rank, int size, uint64_t begin, uint64_t nbytes);
  ~Heap();

  // Allocates pages of this rank's own part. Throws ResourceExhausted.
  std::byte* allocate(uint64_t nbytes);
  // Frees a block. It keeps its pages for the next block of this size, because programs often make the same arrays in
  // every step; at most kMostKeptBytes are kept in this way.
  void free(const std::byte* begin) noexcept;

  // Replaces a block's memory for good by private memory with the same content. Call it when an operation is cancelled:
  // another rank that was stopped in the middle of the operation may continue to write into the shared block later.
  void detach(const std::byte* begin) noexcept;

  // The place of this rank's array in its part; nothing if the array is not entirely in the part, or is detached. Call
  // this and detach() under the progress lock.
  std::optional<uint64_t> place_of(const std::byte* begin, uint64_t nbytes) const;
  std::byte* at(int rank, uint64_t place) const {
    return mapping_.data() + static_cast<uint64_t>(rank) * part_bytes_ + place;
  }
  uint64_t num_allocated() const;  // bytes, of this rank

 private:
  std::byte* own() const { return at(rank_, 0); }
  uint64_t reserve(uint64_t nbytes);
  void release(uint64_t place, uint64_t nbytes) noexcept;
  void release_kept() noexcept;

  const Fd segment_;  // a duplicate, because arrays outlive the job
  const int rank_;
  const uint64_t begin_;  // in the segment
  const uint64_t part_bytes_;
  const Mapping mapping_;
  mutable std::mutex mutex_;
  std::map<uint64_t, uint64_t> used_;       // place -> bytes
  std::map<uint64_t, uint64_t> free_;       // place -> bytes; adjacent ranges are merged
  std::map<uint64_t, uint64_t> detached_;   // place -> bytes
  std::multimap<uint64_t, uint64_t> kept_;  // bytes -> place, of free blocks that keep their pages
  uint64_t num_kept_ = 0;                   // bytes
};

}  // namespace hocket
