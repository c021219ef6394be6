// Computes the result of an operation on one rank if the contributions of all ranks are in memory.
#pragma once

#include <vector>

#include "core/copy.hpp"
#include "core/operation.hpp"
#include "reduce/reduce.hpp"

namespace hocket {

// Args:
//   out: destination: op.out, or other memory if op.out may hold contributions.
//   block_for: returns the begin of a peer's contribution to this rank's result.
//   sources: scratch memory for one pointer per rank.
template <typename BlockFor>
void write_local_result(const Operation& op, int rank, int size, std::byte* out, const BlockFor& block_for,
                        std::vector<const std::byte*>& sources) {
  const auto reduce = [&](uint64_t nbytes, int num_ranks) {
    for (int peer = 0; peer < num_ranks; ++peer) sources[static_cast<size_t>(peer)] = block_for(peer);
    reduce_kernel(op.dtype, op.reduce)(out, nullptr, sources.data(), num_ranks, nbytes / itemsize(op.dtype));
  };
  switch (without_counts(op.kind)) {
    case OpKind::barrier:
      return;
    case OpKind::all_reduce:
    case OpKind::reduce:
      if (op.kind == OpKind::reduce && op.root != rank) return;
      return reduce(op.nbytes, size);
    case OpKind::scan:
      return reduce(op.nbytes, rank + 1);
    case OpKind::reduce_scatter:
      return reduce(op.in_block(rank).nbytes, size);
    case OpKind::broadcast:
      if (op.root != rank) copy_bytes(out, block_for(op.root), op.nbytes);
      return;
    case OpKind::scatter:
      return copy_bytes(out, block_for(op.root), op.in_block(rank).nbytes);
    case OpKind::gather:
      if (op.root != rank) return;
      [[fallthrough]];
    default:  // all_gather, all_to_all, and split and dup, which gather their arguments
      for (int peer = 0; peer < size; ++peer)
        copy_bytes(out + op.out_block(peer).offset, block_for(peer), op.out_block(peer).nbytes);
  }
}

}  // namespace hocket
