// Where the blocks of an operation are in memory: in its arrays, or in scratch memory.
#pragma once

#include <memory>

#include "core/operation.hpp"
#include "schedule/program.hpp"

namespace hocket {

// Divides in the same way as hocket.collectives.blocks: whole items, as equal as can be, the larger parts first.
class Slots {
 public:
  Slots(const Operation& op, const Program& program, int rank);

  uint64_t nbytes(int32_t block) const { return place_of(block).nbytes; }
  // What the rank began with.
  const std::byte* input(const Segment& segment) const;
  // Where results go, and what is on its way.
  std::byte* home(const Segment& segment) const;
  const std::byte* content(const Segment& segment) const {
    return segment.reads_input ? input(segment) : home(segment);
  }
  // What no step moves: a rank's own block of all_gather, an array that is not reduced in place, and what a rank alone
  // has for itself.
  void copy_own_input() const;
  // The scratch memory outlives this: a library may go on writing to it.
  void leak_scratch() { static_cast<void>(scratch_.release()); }

 private:
  bool has_blocks() const;
  // A block within the array that its slot stands for.
  Block place_of(int32_t block) const;
  Block part_of(Block whole, int32_t part, int32_t num_parts) const;

  const Operation& op_;
  const int rank_;
  const int size_;
  const int32_t num_blocks_;
  const int32_t num_array_slots_;
  const OpKind kind_;
  uint64_t scratch_begin_ = 0;  // of further slots, behind what takes the place of an array
  uint64_t room_ = 0;           // in each of them
  std::unique_ptr<std::byte[]> scratch_;
};

}  // namespace hocket
