#include "shm/collective_lane.hpp"

#include <cstring>

#include "shm/peer_memory.hpp"

namespace hocket {

CollectiveLane::CollectiveLane(std::shared_ptr<Region> region)
    : region_(std::move(region)),
      rank_(region_->rank),
      size_(region_->size),
      agreement_(region_, 0),
      sources_(static_cast<size_t>(size_)),
      addresses_(static_cast<size_t>(size_)) {
  reads_peers_ = true;
  for (int peer = 0; peer < size_ && reads_peers_; ++peer)
    if (peer != rank_) reads_peers_ = may_read_memory(region_->pid(peer));
}

Progress CollectiveLane::post(Operation& op) {
  if (size_ == 1) {
    do_alone(op);
    return Progress::done;
  }
  std::optional<Error> refusal;
  const uint64_t nbytes = op.in_nbytes(size_);
  if (nbytes > kEagerBytes) {
    try {
      region_->need_stage();
    } catch (const Failure& failure) {
      refusal = failure.error();
    }
    offer_array(op);
  } else if (nbytes && op.in) {
    std::memcpy(agreement_.payload(rank_, nbytes), op.in, nbytes);
  }
  agreement_.begin(op, std::move(refusal));
  return Progress::moved;
}

Progress CollectiveLane::test(Operation& op) {
  if (!task_) {
    const Progress progress = agreement_.look(op);
    if (progress != Progress::done) return progress;
    if (is_eager(op)) {
      consume_eager(op);
      agreement_.finish();
      return Progress::done;
    }
    const bool direct = is_direct(op);
    agreement_.finish();
    task_ = direct ? read_directly(op) : start(op);
  }
  try {
    const Progress progress = task_.drive();
    if (progress == Progress::done) task_ = Task();
    return progress;
  } catch (...) {
    task_ = Task();
    throw;
  }
}

void CollectiveLane::consume_eager(const Operation& op) {
  const size_t n = op.nbytes;
  switch (op.kind) {
    case OpKind::all_reduce:
    case OpKind::reduce:
      if (op.kind == OpKind::reduce && op.root != rank_) return;
      for (int peer = 0; peer < size_; ++peer) sources_[peer] = payload(op, peer);
      reduce_kernel(op.dtype, op.reduce)(op.out, nullptr, sources_.data(), size_, op.count());
      return;
    case OpKind::reduce_scatter:
      for (int peer = 0; peer < size_; ++peer) sources_[peer] = payload(op, peer) + static_cast<size_t>(rank_) * n;
      reduce_kernel(op.dtype, op.reduce)(op.out, nullptr, sources_.data(), size_, op.count());
      return;
    case OpKind::broadcast:
      if (n && op.root != rank_) std::memcpy(op.out, payload(op, op.root), n);
      return;
    case OpKind::all_to_all:
      for (int peer = 0; n && peer < size_; ++peer)
        std::memcpy(op.out + static_cast<size_t>(peer) * n, payload(op, peer) + static_cast<size_t>(rank_) * n, n);
      return;
    case OpKind::scatter:
      if (n) std::memcpy(op.out, payload(op, op.root) + static_cast<size_t>(rank_) * n, n);
      return;
    case OpKind::barrier:
      return;
    case OpKind::gather:
      if (op.root != rank_) return;
      [[fallthrough]];
    default:  // all_gather, and split and dup, which gather their arguments
      for (int peer = 0; n && peer < size_; ++peer)
        std::memcpy(op.out + static_cast<size_t>(peer) * n, payload(op, peer), n);
  }
}

void CollectiveLane::do_alone(const Operation& op) const {
  if (op.nbytes && op.out && op.in != op.out) std::memmove(op.out, op.in, op.nbytes);
}

Task CollectiveLane::start(const Operation& op) {
  switch (op.kind) {
    case OpKind::all_reduce:
    case OpKind::reduce:
      return reduce_in_slices(op);
    case OpKind::reduce_scatter:
      return reduce_scatter(op);
    case OpKind::broadcast:
      return broadcast(op);
    case OpKind::all_to_all:
      return all_to_all(op);
    case OpKind::gather:
      return gather(op);
    case OpKind::scatter:
      return scatter(op);
    default:
      return all_gather(op);
  }
}

std::vector<int> CollectiveLane::missing() const {
  if (!task_) return agreement_.missing();
  if (task_.is_waiting()) return {task_.waits_for()};
  return {};
}

bool CollectiveLane::cancel(Operation&) noexcept {
  task_ = Task();
  agreement_.cancel();
  return false;  // the line is out
}

std::optional<Error> CollectiveLane::health() {
  if (!task_) return agreement_.health();
  if (std::optional<Error> error = region_->look_at_peers()) return error;
  const std::vector<int> left = region_->left();
  return region_->failure_of(left, missing());
}

}  // namespace hocket
