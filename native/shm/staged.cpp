// The staged algorithms: ranks exchange data through slots of one chunk each; each rank has an in area for its input
// and an out area for its results.
//
// Epochs: chunk k of an operation has epoch base + k + 1; base counts the chunks of all earlier operations and is equal
// on all members. The flags of a rank mean:
//  - `staged` >= epoch: the rank's in-slot holds its chunk k.
//  - `finished` >= epoch: the rank has read what it needs of every member's chunk k (and, in reductions, its out-slot
//    holds the result).
//
// Proof that a slot is free when it is written: chunks use the slots of an area in a ring of at least 16 slots (at
// least two for pieces of blocks with a thousand ranks or more, because pieces have a least size).
//  - In-slots: in every loop below, a rank stages chunk k + 2 (all_gather, all_to_all: k + 2 lags; broadcast: k + 8)
//    only after all members have finished chunk k.
//  - Out-slots: a rank writes its out-slot in round k + 2 only after all members have staged chunk k + 2. They do so
//    after their round k, in which they copied chunk k out.
//  - Between operations, the agreement ensures the same.
#include <algorithm>
#include <cstring>

#include "core/copy.hpp"
#include "shm/collective_lane.hpp"
#include "shm/slices.hpp"

namespace hocket {

namespace {

// all_gather and all_to_all read a chunk this many chunks after it was staged: by then most of it has left the private
// caches of the processor that wrote it, and comes faster out of the shared cache.
constexpr uint64_t kLag = 4;

}  // namespace

uint64_t CollectiveLane::take_epochs(uint64_t num_chunks) {
  const uint64_t base = epoch_;
  epoch_ += num_chunks;
  return base;
}

CollectiveLane::Slots CollectiveLane::take_slots(uint64_t nbytes, uint64_t num_chunks) {
  nbytes = std::max<uint64_t>(round_up(nbytes, kLineBytes), kLineBytes);
  const uint64_t count = region_->area_bytes / nbytes;
  const uint64_t first = div_up(position_, nbytes) % count;
  position_ = (first + num_chunks) % count * nbytes;
  return {nbytes, first, count};
}

void CollectiveLane::publish_staged(uint64_t epoch) const {
  region_->flags(rank_).staged.value.store(epoch, std::memory_order_release);
  region_->ring_peers();
}

void CollectiveLane::publish_finished(uint64_t epoch) const {
  region_->flags(rank_).finished.value.store(epoch, std::memory_order_release);
  region_->ring_peers();
}

// A chunk holds a piece of each other rank's block, and no room for a piece of the own block: with a smaller part of
// the area in use, a slot would be written again while another processor still has it in its private caches.
CollectiveLane::Pieces CollectiveLane::take_pieces(uint64_t largest) {
  const auto num_peers = static_cast<uint64_t>(size_ - 1);
  const uint64_t most = region_->chunk_bytes / num_peers / kLineBytes * kLineBytes;
  const uint64_t nbytes = std::max<uint64_t>(std::min(most, round_up(largest, kLineBytes)), kLineBytes);
  const uint64_t num_chunks = div_up(largest, nbytes);
  return {take_slots(nbytes * num_peers, num_chunks), nbytes, num_chunks};
}

std::byte* CollectiveLane::piece_at(const Pieces& pieces, uint64_t k, int from, int to) const {
  return region_->in_area(from) + pieces.slots.offset(k) + static_cast<uint64_t>(to - (to > from)) * pieces.nbytes;
}

void CollectiveLane::stage_pieces(const Operation& op, const Pieces& pieces, uint64_t k) {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const Block part = piece_of(op.in_block(peer), k, pieces.nbytes);
    writer_.write(piece_at(pieces, k, rank_, peer), op.in + part.offset, part.nbytes);
  }
}

// all_reduce and reduce: every rank owns a slice of each chunk. It stages the slices of the others, reduces its own
// slice over all ranks in rank order, and copies the other slices from their owners (slice-owner, or direct
// reduce-scatter + all-gather; Rabenseifner 2004 over shared memory). Copies only (n-1)/n of the array in and out.
Task CollectiveLane::reduce_in_slices(Operation op) {
  const Region& region = *region_;
  const ReduceKernel kernel = reduce_kernel(op.dtype, op.reduce);
  const uint64_t chunk = region.chunk_bytes;
  const uint64_t num_chunks = div_up(op.nbytes, chunk);
  const uint64_t base = take_epochs(num_chunks);
  const Slots slots = take_slots(std::min(chunk, op.nbytes), num_chunks);
  const bool receives = op.kind == OpKind::all_reduce || op.root == rank_;
  const bool others_need = op.kind == OpKind::all_reduce || op.root != rank_;
  std::vector<const std::byte*> sources(static_cast<size_t>(size_));
  const auto chunk_size = [&](uint64_t k) { return std::min<uint64_t>(chunk, op.nbytes - k * chunk); };
  const auto stage = [&](uint64_t k) {
    const size_t nbytes = chunk_size(k);
    const Slice own = slice_of(nbytes, rank_, size_);
    const std::byte* from = op.in + k * chunk;
    std::byte* to = region.in_area(rank_) + slots.offset(k);
    writer_.write(to, from, own.begin);
    writer_.write(to + own.end(), from + own.end(), nbytes - own.end());
    publish_staged(base + k + 1);
  };

  stage(0);
  for (uint64_t k = 0; k < num_chunks; ++k) {
    if (k + 1 < num_chunks) stage(k + 1);
    const size_t nbytes = chunk_size(k);
    const Slice own = slice_of(nbytes, rank_, size_);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) co_await staged_by(peer, base + k + 1);
      sources[peer] = (peer == rank_ ? op.in + k * chunk : region.in_area(peer) + slots.offset(k)) + own.begin;
    }
    // Never reduce directly into shared memory: a copy writes whole lines, but a kernel first fetches each line from
    // the processor that read it last.
    if (!receives) scratch_.resize(std::max(scratch_.size(), own.nbytes));
    std::byte* result = receives ? op.out + k * chunk + own.begin : scratch_.data();
    kernel(result, nullptr, sources.data(), size_, own.nbytes / itemsize(op.dtype));
    if (others_need) writer_.write(region.out_area(rank_) + slots.offset(k) + own.begin, result, own.nbytes);
    publish_finished(base + k + 1);
    for (int step = 1; step < size_; ++step) {
      const int peer = (rank_ + step) % size_;  // each rank starts with another peer
      co_await finished_by(peer, base + k + 1);
      const Slice slice = slice_of(nbytes, peer, size_);
      if (receives)
        std::memcpy(op.out + k * chunk + slice.begin, region.out_area(peer) + slots.offset(k) + slice.begin,
                    slice.nbytes);
    }
  }
}

// In the algorithms below, blocks may have different sizes: the largest block determines the number of pieces, and the
// last pieces of smaller blocks are empty.

// Every rank stages a piece of each other rank's block, and reduces its own block from all stages.
Task CollectiveLane::reduce_scatter(Operation op) {
  const ReduceKernel kernel = reduce_kernel(op.dtype, op.reduce);
  const Pieces pieces = take_pieces(op.largest_block());
  const auto [_, piece, num_chunks] = pieces;
  const uint64_t base = take_epochs(num_chunks);
  const Block block = op.in_block(rank_);
  std::vector<const std::byte*> sources(static_cast<size_t>(size_));
  for (uint64_t k = 0; k < num_chunks; ++k) {
    if (k >= 2)
      for (int peer = 0; peer < size_; ++peer)
        if (peer != rank_) co_await finished_by(peer, base + k - 1);
    stage_pieces(op, pieces, k);
    publish_staged(base + k + 1);
    const Block own = piece_of(block, k, piece);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) co_await staged_by(peer, base + k + 1);
      sources[peer] = peer == rank_ ? op.in + own.offset : piece_at(pieces, k, peer, rank_);
    }
    kernel(op.out + (own.offset - block.offset), nullptr, sources.data(), size_, own.nbytes / itemsize(op.dtype));
    publish_finished(base + k + 1);
  }
}

Task CollectiveLane::all_gather(Operation op) {
  const Region& region = *region_;
  const uint64_t chunk = region.chunk_bytes;
  const uint64_t num_chunks = div_up(op.largest_block(), chunk);
  const uint64_t base = take_epochs(num_chunks);
  const Slots slots = take_slots(std::min(chunk, op.largest_block()), num_chunks);
  const Block block = op.out_block(rank_);
  for (uint64_t k = 0; k < num_chunks + kLag; ++k) {
    if (k < num_chunks) {
      for (int peer = 0; k >= 2 * kLag && peer < size_; ++peer)
        if (peer != rank_) co_await finished_by(peer, base + k - 2 * kLag + 1);
      const Block own = piece_of(block, k, chunk);
      const std::byte* from = op.in + (own.offset - block.offset);
      writer_.write(region.in_area(rank_) + slots.offset(k), from, own.nbytes);
      publish_staged(base + k + 1);
      if (op.out + own.offset != from) copy_into_array(op.out + own.offset, from, own.nbytes, op.out_nbytes(size_));
    }
    if (k < kLag) continue;
    const uint64_t late = k - kLag;
    for (int step = 1; step < size_; ++step) {
      const int peer = (rank_ + step) % size_;
      co_await staged_by(peer, base + late + 1);
      const Block part = piece_of(op.out_block(peer), late, chunk);
      copy_into_array(op.out + part.offset, region.in_area(peer) + slots.offset(late), part.nbytes,
                      op.out_nbytes(size_));
    }
    publish_finished(base + late + 1);
  }
}

// Every rank stages its array, and reduces the staged arrays of all lower ranks with its own.
Task CollectiveLane::scan(Operation op) {
  const Region& region = *region_;
  const ReduceKernel kernel = reduce_kernel(op.dtype, op.reduce);
  const uint64_t chunk = region.chunk_bytes;
  const uint64_t num_chunks = div_up(op.nbytes, chunk);
  const uint64_t base = take_epochs(num_chunks);
  const Slots slots = take_slots(std::min(chunk, op.nbytes), num_chunks);
  std::vector<const std::byte*> sources(static_cast<size_t>(size_));
  for (uint64_t k = 0; k < num_chunks; ++k) {
    const Block part = piece_of({0, op.nbytes}, k, chunk);
    if (k >= 2)
      for (int peer = rank_ + 1; peer < size_; ++peer) co_await finished_by(peer, base + k - 1);
    if (rank_ + 1 < size_) writer_.write(region.in_area(rank_) + slots.offset(k), op.in + part.offset, part.nbytes);
    publish_staged(base + k + 1);
    for (int peer = 0; peer < rank_; ++peer) {
      co_await staged_by(peer, base + k + 1);
      sources[peer] = region.in_area(peer) + slots.offset(k);
    }
    sources[rank_] = op.in + part.offset;
    kernel(op.out + part.offset, nullptr, sources.data(), rank_ + 1, part.nbytes / itemsize(op.dtype));
    publish_finished(base + k + 1);
  }
}

// The root stages, the others copy out. Chunks are small, so that the copies overlap; up to kAhead chunks are staged
// ahead, so that ranks on one processor need fewer context switches.
Task CollectiveLane::broadcast(Operation op) {
  constexpr uint64_t kAhead = 8;
  constexpr uint64_t kParts = 16;  // number of chunks of medium arrays
  const Region& region = *region_;
  const uint64_t limit = std::min<uint64_t>(region.chunk_bytes, kMostBroadcastChunkBytes);
  const uint64_t chunk = std::clamp(op.nbytes / kParts / kLineBytes * kLineBytes, kLeastBroadcastChunkBytes, limit);
  const uint64_t num_chunks = div_up(op.nbytes, chunk);
  const uint64_t base = take_epochs(num_chunks);
  const Slots slots = take_slots(std::min(chunk, op.nbytes), num_chunks);
  for (uint64_t k = 0; k < num_chunks; ++k) {
    const size_t nbytes = std::min<uint64_t>(chunk, op.nbytes - k * chunk);
    if (rank_ == op.root) {
      if (k >= kAhead)
        for (int peer = 0; peer < size_; ++peer)
          if (peer != rank_) co_await finished_by(peer, base + k - kAhead + 1);
      writer_.write(region.in_area(rank_) + slots.offset(k), op.in + k * chunk, nbytes);
      publish_staged(base + k + 1);
    } else {
      co_await staged_by(op.root, base + k + 1);
      copy_into_array(op.out + k * chunk, region.in_area(op.root) + slots.offset(k), nbytes, op.nbytes);
      publish_finished(base + k + 1);
    }
  }
  // All ranks end with equal epochs, whether root or not.
  publish_staged(base + num_chunks);
  publish_finished(base + num_chunks);
}

Task CollectiveLane::all_to_all(Operation op, uint64_t largest) {
  const Pieces pieces = take_pieces(largest);
  const auto [_, piece, num_chunks] = pieces;
  const uint64_t base = take_epochs(num_chunks);
  // With a thousand ranks an area holds fewer slots, because pieces have a least size.
  const uint64_t lag = std::min(kLag, pieces.slots.count / 2);
  for (uint64_t k = 0; k < num_chunks + lag; ++k) {
    if (k < num_chunks) {
      for (int peer = 0; k >= 2 * lag && peer < size_; ++peer)
        if (peer != rank_) co_await finished_by(peer, base + k - 2 * lag + 1);
      stage_pieces(op, pieces, k);
      publish_staged(base + k + 1);
      const Block own = piece_of(op.in_block(rank_), k, piece);
      copy_into_array(op.out + piece_of(op.out_block(rank_), k, piece).offset, op.in + own.offset, own.nbytes,
                      op.out_nbytes(size_));
    }
    if (k < lag) continue;
    const uint64_t late = k - lag;
    for (int step = 1; step < size_; ++step) {
      const int peer = (rank_ + step) % size_;
      co_await staged_by(peer, base + late + 1);
      const Block part = piece_of(op.out_block(peer), late, piece);
      copy_into_array(op.out + part.offset, piece_at(pieces, late, peer, rank_), part.nbytes, op.out_nbytes(size_));
    }
    publish_finished(base + late + 1);
  }
}

// The others stage, the root copies out. A rank that is not the root waits only for free slots.
Task CollectiveLane::gather(Operation op) {
  const Region& region = *region_;
  const uint64_t chunk = region.chunk_bytes;
  const uint64_t num_chunks = div_up(op.largest_block(), chunk);
  const uint64_t base = take_epochs(num_chunks);
  const Slots slots = take_slots(std::min(chunk, op.largest_block()), num_chunks);
  const Block block = op.out_block(rank_);
  for (uint64_t k = 0; k < num_chunks; ++k) {
    const Block own = piece_of(block, k, chunk);
    const std::byte* from = op.in + (own.offset - block.offset);
    if (rank_ != op.root) {
      if (k >= 2) co_await finished_by(op.root, base + k - 1);
      writer_.write(region.in_area(rank_) + slots.offset(k), from, own.nbytes);
      publish_staged(base + k + 1);
      continue;
    }
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) co_await staged_by(peer, base + k + 1);
      const Block part = piece_of(op.out_block(peer), k, chunk);
      const std::byte* source = peer == rank_ ? from : region.in_area(peer) + slots.offset(k);
      if (op.out + part.offset != source)
        copy_into_array(op.out + part.offset, source, part.nbytes, op.out_nbytes(size_));
    }
    publish_finished(base + k + 1);
  }
  publish_staged(base + num_chunks);  // all ranks end with equal epochs
  publish_finished(base + num_chunks);
}

// The root stages a piece of each block; each other rank copies its own piece out.
Task CollectiveLane::scatter(Operation op) {
  const Pieces pieces = take_pieces(op.largest_block());
  const auto [_, piece, num_chunks] = pieces;
  const uint64_t base = take_epochs(num_chunks);
  const Block block = op.in_block(rank_);
  for (uint64_t k = 0; k < num_chunks; ++k) {
    const Block own = piece_of(block, k, piece);
    std::byte* to = op.out + (own.offset - block.offset);
    if (rank_ != op.root) {
      co_await staged_by(op.root, base + k + 1);
      copy_into_array(to, piece_at(pieces, k, op.root, rank_), own.nbytes, op.out_nbytes(size_));
      publish_finished(base + k + 1);
      continue;
    }
    for (int peer = 0; k >= 2 && peer < size_; ++peer)
      if (peer != rank_) co_await finished_by(peer, base + k - 1);
    stage_pieces(op, pieces, k);
    if (to != op.in + own.offset) copy_bytes(to, op.in + own.offset, own.nbytes);
    publish_staged(base + k + 1);
  }
  publish_staged(base + num_chunks);
  publish_finished(base + num_chunks);
}

}  // namespace hocket
