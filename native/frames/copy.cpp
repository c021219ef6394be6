#include "frames/copy.hpp"

#include <algorithm>
#include <utility>

#include "core/copy.hpp"
#include "frames/background.hpp"
#include "shm/peer_memory.hpp"

namespace hocket {

namespace {

constexpr uint64_t kPieceBytes = 1 << 20;

}  // namespace

void FrameCopy::copy(const CopyPiece& piece) {
  if (!owner_) {
    copy_into_array(piece.to, reinterpret_cast<const std::byte*>(piece.from), piece.nbytes, nbytes_);  // NOLINT
    return;
  }
  std::string why;
  try {
    if (read_memory(owner_, piece.from, piece.to, piece.nbytes)) return;
    why = "process " + std::to_string(owner_) + " has ended";
  } catch (const std::exception& error) {
    why = error.what();
  }
  const std::lock_guard lock(mutex_);
  if (error_.empty()) error_ = std::move(why);
}

void FrameCopy::run() {
  for (const CopyPiece& each : pieces_) copy(each);
  num_left_.store(0, std::memory_order_release);
}

void FrameCopy::begin(const std::shared_ptr<FrameCopy>& copy, std::function<void()> at_end) {
  std::vector<CopyPiece> cut;
  for (const CopyPiece& each : copy->pieces_)
    for (uint64_t at = 0; at < each.nbytes; at += kPieceBytes)
      cut.push_back({each.from + at, each.to + at, std::min(each.nbytes - at, kPieceBytes)});
  // Relaxed: the queue of the threads orders it before they begin.
  copy->num_left_.store(cut.size(), std::memory_order_relaxed);
  const auto shared_end = std::make_shared<std::function<void()>>(std::move(at_end));
  for (const CopyPiece& piece : cut) {
    // One allocation at most, and one that fails is made up for at once: every piece is copied.
    run_in_background([copy, piece, shared_end] {
      copy->copy(piece);
      if (copy->num_left_.fetch_sub(1, std::memory_order_acq_rel) == 1) (*shared_end)();
    });
  }
}

std::string FrameCopy::error() {
  const std::lock_guard lock(mutex_);
  return error_;
}

}  // namespace hocket
