// One operation as its issuer sees it, and its fingerprint: the members compare fingerprints to check that all of them
// issue the same operation.
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
  uint8_t backend = 0;  // index of the library among the communicator's backends
  int32_t root = -1;    // root of a rooted collective, peer of a point-to-point operation
  int32_t tag = 0;      // point-to-point only
  uint64_t seq = 0;     // place in the issue order, from 1; messages are numbered separately
  uint64_t nbytes = 0;  // of the array, or of one block if every rank has one; with counts: of all blocks together
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  Shape shape = {};                // of x, once a Work exists; for error messages
  const char* site = nullptr;      // call site "file.py:12", interned for the life of the process; null while unknown
  void* token = nullptr;           // belongs to the lane that carries the operation
  const Blocks* blocks = nullptr;  // only with counts; belongs to the call or the work
  const DeviceArrays* device = nullptr;  // null: the arrays are in host memory; belongs to the call or the work
  uint64_t sent_nbytes = 0;              // bytes that this rank has sent by the program
  const Program* program = nullptr;      // executes the operation; null: the library does; belongs to the communicator
  uint32_t shares = 0;                   // version of its lane's Shares that divides it; 0: two halves
  bool is_in_place = false;              // it was done in place, on shared arrays
  bool is_named = false;                 // policies neither choose for it nor learn from it
  bool is_of_object = false;  // it carries a pickled object, or the size of one, and not an array of the user

  size_t count() const { return nbytes / itemsize(dtype); }
  // Bytes at `in` and at `out` of this rank; for gather and scatter, bytes on the root.
  uint64_t in_nbytes(int size) const {
    if (blocks) return blocks->in_nbytes;
    return has_input_blocks(kind) ? nbytes * static_cast<uint64_t>(size) : nbytes;
  }
  uint64_t out_nbytes(int size) const {
    if (blocks) return blocks->out_nbytes;
    return has_output_blocks(kind) ? nbytes * static_cast<uint64_t>(size) : nbytes;
  }
  // A rank's block in the array that has blocks.
  Block in_block(int rank) const {
    return blocks ? block_of(blocks->in, rank) : Block{static_cast<uint64_t>(rank) * nbytes, nbytes};
  }
  Block out_block(int rank) const {
    return blocks ? block_of(blocks->out, rank) : Block{static_cast<uint64_t>(rank) * nbytes, nbytes};
  }
  // The largest of the blocks that this rank knows: all blocks, except in all_to_allv.
  uint64_t largest_block() const {
    return blocks ? std::max(hocket::largest_block(blocks->in), hocket::largest_block(blocks->out)) : nbytes;
  }
  // The size that all members must agree on. Sizes that only two members know are compared by balance_of().
  uint64_t agreed_nbytes() const { return kind == OpKind::all_to_allv ? 0 : nbytes; }
};

// Mixes kind, dtype, reduction, backend, root, bytes, schedule and is_of_object to 64 bits
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

// "1048576 bytes float32"; "a part of an object, 8 bytes" for a pickle or its size.
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
