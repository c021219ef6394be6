#include "shm/collective_lane.hpp"

#include <algorithm>
#include <cstring>

#include "core/copy.hpp"
#include "core/local_result.hpp"
#include "shm/peer_memory.hpp"
#include "shm/point_to_point_lane.hpp"

namespace hocket {

CollectiveLane::CollectiveLane(std::shared_ptr<Region> region)
    : region_(std::move(region)),
      rank_(region_->rank),
      size_(region_->size),
      agreement_(region_, 0),
      sources_(static_cast<size_t>(size_)),
      offers_(static_cast<size_t>(size_)),
      device_offers_(static_cast<size_t>(size_)) {
  reads_peers_ = true;
  for (int peer = 0; peer < size_ && reads_peers_; ++peer)
    if (peer != rank_) reads_peers_ = may_read_memory(region_->pid(peer));
}

Progress CollectiveLane::post(Operation& op) {
  if (size_ == 1) {
    run_single_rank(op);
    return Progress::done;
  }
  std::optional<Error> refusal;
  const uint64_t most = contribution(op);
  if (op.program) {
    try {
      need_executor();
    } catch (const Failure& failure) {
      refusal = failure.error();
    }
  } else if (most > kEagerBytes) {
    try {
      region_->need_stage();
    } catch (const Failure& failure) {
      refusal = failure.error();
    }
    offer_arrays(op);
  } else if (op.in) {
    copy_bytes(agreement_.payload(rank_, most), op.in, op.in_nbytes(size_));
  }
  agreement_.begin(op, std::move(refusal));
  return Progress::moved;
}

Progress CollectiveLane::test(Operation& op) {
  if (is_executing_) return execute(op);
  if (!task_) {
    const Progress progress = agreement_.test(op);
    if (progress != Progress::done) return progress;
    if (op.program) {
      agreement_.finish();
      executor_->start(op);
      is_executing_ = true;
      return execute(op);
    }
    if (is_eager(op)) {
      consume_eager(op);
      agreement_.finish();
      return Progress::done;
    }
    read_offers(op);
    agreement_.finish();
    uint64_t largest = op.largest_block();
    for (const Offer& offer : offers_) largest = std::max(largest, offer.largest);
    const Sharing sharing = find_sharing(op);
    is_shared_ = op.is_in_place = sharing != Sharing::none;
    Operation given = op;
    if (op.device && !is_shared_) given = host_copies_.emplace(op, size_).on_host(op);
    task_ = is_shared_                  ? start_shared(given, sharing)
            : is_direct(given, largest) ? read_directly(given)
                                        : start(given, largest);
  }
  try {
    const Progress progress = task_.drive();
    if (progress != Progress::done) return progress;
    if (host_copies_) host_copies_->write_back();
    reset_task();
    return progress;
  } catch (...) {
    has_left_device_arrays_ |= op.device && is_shared_;
    reset_task();
    throw;
  }
}

void CollectiveLane::need_executor() {
  if (executor_) return;
  region_->need_controls(Channel::schedules);
  executor_ =
      std::make_unique<Executor>(std::make_unique<PointToPointLane>(region_, Channel::schedules), rank_, size_, 0);
}

Progress CollectiveLane::execute(Operation& op) {
  try {
    const Progress progress = executor_->drive();
    is_executing_ = progress != Progress::done;
    op.sent_nbytes = executor_->sent_nbytes();
    return progress;
  } catch (...) {
    is_executing_ = false;
    throw;
  }
}

void CollectiveLane::consume_eager(const Operation& op) {
  const uint64_t most = contribution(op);
  const uint64_t offset = has_input_blocks(op.kind) ? op.in_block(rank_).offset : 0;
  const auto block_for = [&](int peer) { return agreement_.payload(peer, most) + offset; };
  write_local_result(op, rank_, size_, op.out, block_for, sources_);
}

void CollectiveLane::run_single_rank(const Operation& op) const {
  if (!op.nbytes || !op.out || op.in == op.out) return;
  if (op.device)
    op.device->driver->copy_within(reinterpret_cast<uintptr_t>(op.out), reinterpret_cast<uintptr_t>(op.in), op.nbytes,
                                   op.device->device);
  else
    std::memmove(op.out, op.in, op.nbytes);
}

Task CollectiveLane::start(const Operation& op, uint64_t largest) {
  switch (without_counts(op.kind)) {
    case OpKind::all_reduce:
    case OpKind::reduce:
      return reduce_in_slices(op);
    case OpKind::reduce_scatter:
      return reduce_scatter(op);
    case OpKind::scan:
      return scan(op);
    case OpKind::broadcast:
      return broadcast(op);
    case OpKind::all_to_all:
      return all_to_all(op, largest);
    case OpKind::gather:
      return gather(op);
    case OpKind::scatter:
      return scatter(op);
    default:
      return all_gather(op);
  }
}

std::vector<int> CollectiveLane::missing() const {
  if (is_executing_) return executor_->missing();
  if (!task_) return agreement_.missing();
  if (task_.is_waiting()) return {task_.waits_for()};
  return {};
}

bool CollectiveLane::cancel(Operation& op) noexcept {
  // Other members may have begun even if this rank has not yet seen the agreement.
  if (heap_ && !op.program && !is_eager(op))
    for (const std::byte* array : {op.in, static_cast<const std::byte*>(op.out)})
      if (array) heap_->detach(array);
  if (op.device && !host_copies_) has_left_device_arrays_ = true;
  reset_task();
  if (is_executing_) executor_->cancel();
  is_executing_ = false;
  agreement_.cancel();
  return false;  // the line is already published
}

std::optional<Error> CollectiveLane::health() {
  if (!task_ && !is_executing_) return agreement_.health();
  if (std::optional<Error> error = region_->check_peers()) return error;
  const std::vector<int> left = region_->left();
  return region_->failure_of(left, missing());
}

}  // namespace hocket
