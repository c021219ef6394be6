// One operation as its issuer sees it, and the fingerprint by which the members agree that it is the same one.
#pragma once

#include <cstdint>
#include <string>

#include "core/blocks.hpp"
#include "core/shape.hpp"
#include "core/types.hpp"
#include "schedule/program.hpp"

namespace hocket {

struct DeviceArrays;  // memory/driver.hpp

struct Operation {
  OpKind kind = OpKind::barrier;
  DType dtype = DType::uint8;
  ReduceOp reduce = ReduceOp::sum;
  uint8_t backend = 0;  // place of the library among those of the communicator
  int32_t root = -1;    // root of a rooted collective, peer of a point-to-point operation
  int32_t tag = 0;      // point-to-point only
  uint64_t seq = 0;     // place in the issue order, from 1; point-to-point counts by itself
  uint64_t nbytes = 0;  // the array, or one block where there is one for every rank; with counts: all blocks together
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  Shape shape = {};                // of x, once there is a Work; messages tell it
  const char* site = nullptr;      // call site "file.py:12", interned for the life of the process; null while unknown
  void* token = nullptr;           // belongs to the lane that carries the operation
  const Blocks* blocks = nullptr;  // only with counts; belongs to the call or the work
  const DeviceArrays* device = nullptr;  // null: the arrays lie in memory of the host; belongs to the call or the work
  uint64_t sent_nbytes = 0;              // that this rank has sent by the program
  const Program* program = nullptr;  // by which it is executed; null: as its library does; belongs to the communicator
  uint32_t shares = 0;               // which version of its lane's Shares divides it; 0: none, so in halves
  bool is_in_place = false;          // it was done on shared arrays, where they are
  bool is_named = false;             // no policy has a say in it, and none learns from it
  bool is_of_object = false;         // it carries a pickled object, or the size of one, and no array of the user's

  size_t count() const { return nbytes / itemsize(dtype); }
  // Bytes at `in` and at `out` of this rank; of gather and scatter those of the root.
  uint64_t in_nbytes(int size) const {
    if (blocks) return blocks->in_nbytes;
    return has_input_blocks(kind) ? nbytes * static_cast<uint64_t>(size) : nbytes;
  }
  uint64_t out_nbytes(int size) const {
    if (blocks) return blocks->out_nbytes;
    return has_output_blocks(kind) ? nbytes * static_cast<uint64_t>(size) : nbytes;
  }
  // Where a rank's block lies in the array that has blocks.
  Block in_block(int rank) const {
    return blocks ? block_of(blocks->in, rank) : Block{static_cast<uint64_t>(rank) * nbytes, nbytes};
  }
  Block out_block(int rank) const {
    return blocks ? block_of(blocks->out, rank) : Block{static_cast<uint64_t>(rank) * nbytes, nbytes};
  }
  // Of the blocks that this rank knows: all, unless it is all_to_allv.
  uint64_t largest_block() const {
    return blocks ? std::max(hocket::largest_block(blocks->in), hocket::largest_block(blocks->out)) : nbytes;
  }
  // What all members must agree on. Sizes that only two of them know are compared otherwise (balance_of).
  uint64_t agreed_nbytes() const { return kind == OpKind::all_to_allv ? 0 : nbytes; }
};

// Kind, dtype, reduction, backend, root, bytes, schedule, and whether it is of an object, mixed to 64 bits
// (docs/decisions/fingerprints-leave-out-the-call-site.md). Zero is never a fingerprint.
inline uint64_t fingerprint(const Operation& op) {
  const uint64_t head = static_cast<uint64_t>(op.kind) | static_cast<uint64_t>(op.dtype) << 8 |
                        (reduces(op.kind) ? static_cast<uint64_t>(op.reduce) + 1 : 0) << 16 |
                        static_cast<uint64_t>(op.backend) << 24 |
                        static_cast<uint64_t>(static_cast<uint32_t>(op.root)) << 32;
  uint64_t h = head * 0x9E3779B97F4A7C15ull ^ op.agreed_nbytes() ^ (op.blocks ? op.blocks->agreed : 0);
  if (op.program) h ^= op.program->hash;
  if (op.is_of_object) h = ~h;
  h = (h ^ (h >> 32)) * 0xD6E8FEB86659FD93ull;
  return (h ^ (h >> 29)) | 1;
}

// "1048576 bytes float32", "a part of an object, 8 bytes": of its pickle, or its size.
inline std::string content_text(uint64_t nbytes, DType dtype, bool is_of_object) {
  if (is_of_object) return "a part of an object, " + std::to_string(nbytes) + " bytes";
  return std::to_string(nbytes) + " bytes " + name(dtype);
}

// "all_reduce(sum) of 1048576 bytes float32 (512, 512)", "broadcast from root 2 of 8 bytes int64", "send to rank 1
// ...".
inline std::string describe(const Operation& op) {
  std::string text = name(op.kind);
  if (op.kind != OpKind::barrier && reduces(op.kind)) text += std::string("(") + name(op.reduce) + ")";
  if (op.program) text += " by " + op.program->name;
  if (op.kind == OpKind::barrier) return text;
  if (has_root(op.kind)) text += " with root " + std::to_string(op.root);
  const std::string peer = op.root == kProcNull ? "PROC_NULL" : "rank " + std::to_string(op.root);
  if (op.kind == OpKind::send) text += " to " + peer;
  if (op.kind == OpKind::recv) text += " from " + peer;
  if (op.kind == OpKind::send || op.kind == OpKind::recv) text += " with tag " + std::to_string(op.tag);
  text += " of " + content_text(op.nbytes, op.dtype, op.is_of_object);
  if (op.shape.num_axes >= 0 && !op.is_of_object) text.append(" ").append(hocket::text(op.shape));
  if (!op.blocks) return text;
  const Blocks& blocks = *op.blocks;
  const uint64_t item = itemsize(op.dtype);
  if (op.kind == OpKind::all_to_allv)
    return text + ", sending " + items_text(blocks.in, item) + " and receiving " + items_text(blocks.out, item) +
           " items";
  return text + " in blocks of " + items_text(blocks.in.empty() ? blocks.out : blocks.in, item) + " items";
}

}  // namespace hocket
