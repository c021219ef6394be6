// Arrays of programs in the memory that the ranks of a host share: what lies here the others read and write where it
// is, and nothing has to be handed over by copying.
//
// The second half of the host's segment is divided between its ranks. A rank alone hands out its own part, and keeps
// the account of it in its own memory; all ranks map all parts, at one address each, when they are needed first. So
// (rank, place) is all that another one has to know of an array. Places of a part are used again, but never moved.
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
  // Maps the memory of all ranks together, `nbytes` of the segment from `begin` on, which a huge page begins at;
  // nothing is allocated. Throws ResourceExhausted.
  Heap(int segment, int rank, int size, uint64_t begin, uint64_t nbytes);
  ~Heap();

  // Pages of this rank's own part. Throws ResourceExhausted.
  std::byte* allocate(uint64_t nbytes);
  // A block of that size may be asked for again soon, as by programs that make the same arrays in every step: it keeps
  // its pages, as long as all such blocks do not have too many.
  void free(const std::byte* begin) noexcept;

  // Gives a block memory that no other rank sees, with the content that it has, and for good. To be called where an
  // operation was given up: a rank that had stopped in the middle of it may still go on writing.
  void detach(const std::byte* begin) noexcept;

  // Where an array of this rank lies in its part, if it lies there as a whole and others see it. Under the progress
  // lock, as detach().
  std::optional<uint64_t> place_of(const std::byte* begin, uint64_t nbytes) const;
  std::byte* at(int rank, uint64_t place) const {
    return mapping_.data() + static_cast<uint64_t>(rank) * part_bytes_ + place;
  }
  uint64_t num_allocated() const;  // bytes, of this rank

 private:
  std::byte* own() const { return at(rank_, 0); }
  uint64_t take(uint64_t nbytes);
  void give_back(uint64_t place, uint64_t nbytes) noexcept;
  void give_back_kept() noexcept;

  const Fd segment_;  // its own, as arrays outlive the job
  const int rank_;
  const uint64_t begin_;  // in the segment
  const uint64_t part_bytes_;
  const Mapping mapping_;
  mutable std::mutex mutex_;
  std::map<uint64_t, uint64_t> used_;       // place -> bytes
  std::map<uint64_t, uint64_t> free_;       // likewise; neighbours are one
  std::map<uint64_t, uint64_t> detached_;   // likewise
  std::multimap<uint64_t, uint64_t> kept_;  // bytes -> place
  uint64_t num_kept_ = 0;                   // bytes
};

}  // namespace hocket
