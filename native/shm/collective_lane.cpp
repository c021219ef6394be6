#include "shm/collective_lane.hpp"

#include <cstdio>
#include <cstring>

namespace hocket {

namespace {
// Never equal to a fingerprint: this rank could not start the operation, see its detail.
constexpr uint64_t kCannotStart = 0;
}  // namespace

CollectiveLane::CollectiveLane(std::shared_ptr<Region> region)
    : region_(std::move(region)), rank_(region_->rank), size_(region_->size), sources_(static_cast<size_t>(size_)) {}

// Bytes that a rank has to hand to others (rounded up to what all ranks agree on).
uint64_t CollectiveLane::contribution(const Operation& op) const {
  switch (op.kind) {
    case OpKind::reduce_scatter:
    case OpKind::all_to_all:
      return op.nbytes * static_cast<uint64_t>(size_);
    default:
      return op.nbytes;
  }
}

const std::byte* CollectiveLane::payload(const Operation& op, int peer) const {
  return contribution(op) <= kInlineBytes ? region_->line(op.seq, peer).payload : region_->eager(op.seq, peer);
}

Progress CollectiveLane::post(Operation& op) {
  if (size_ == 1) {
    do_alone(op);
    return Progress::done;
  }
  HeaderLine& line = region_->line(op.seq, rank_);
  line.fingerprint = fingerprint(op);
  const uint64_t nbytes = contribution(op);
  if (nbytes <= kInlineBytes) {
    if (nbytes) std::memcpy(line.payload, op.in, nbytes);
  } else if (nbytes <= kEagerBytes) {
    std::memcpy(region_->eager(op.seq, rank_), op.in, nbytes);
  } else {
    try {
      region_->need_stage();
    } catch (const Failure& failure) {
      own_error_ = failure.error();
      line.fingerprint = kCannotStart;
    }
  }
  line.seq.store(op.seq, std::memory_order_release);
  region_->ring_peers();
  phase_ = Phase::headers;
  seq_ = op.seq;
  next_header_ = 0;
  agree_ = !own_error_;
  return Progress::moved;
}

bool CollectiveLane::read_headers(const Operation& op) {
  const uint64_t mine = region_->line(op.seq, rank_).fingerprint;
  for (; next_header_ < size_; ++next_header_) {
    const HeaderLine& line = region_->line(op.seq, next_header_);
    if (line.seq.load(std::memory_order_acquire) != op.seq) return false;
    if (line.fingerprint != mine) agree_ = false;
  }
  return true;
}

Progress CollectiveLane::test(Operation& op) {
  switch (phase_) {
    case Phase::headers:
      if (!read_headers(op)) return Progress::waiting;
      if (!agree_) {
        phase_ = Phase::publish_detail;
        return publish_detail(op);
      }
      if (is_eager(op)) {
        consume_eager(op);
        phase_ = Phase::idle;
        return Progress::done;
      }
      task_ = start(op);
      phase_ = Phase::task;
      [[fallthrough]];
    case Phase::task: {
      const Progress progress = task_.drive();
      if (progress == Progress::done) {
        task_ = Task();
        phase_ = Phase::idle;
      }
      return progress;
    }
    case Phase::publish_detail:
      return publish_detail(op);
    case Phase::details:
      if (!missing().empty()) return Progress::waiting;
      raise_mismatch(op);
    case Phase::idle:
      break;
  }
  return Progress::done;
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
    case OpKind::barrier:
      return;
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
    default:
      return all_gather(op);
  }
}

std::vector<int> CollectiveLane::missing() const {
  std::vector<int> ranks;
  switch (phase_) {
    case Phase::headers:
      for (int peer = next_header_; peer < size_; ++peer)
        if (region_->line(seq_, peer).seq.load(std::memory_order_acquire) != seq_) ranks.push_back(peer);
      break;
    case Phase::task:
      if (task_.is_waiting()) ranks.push_back(task_.waits_for());
      break;
    case Phase::details:
      for (int peer = 0; peer < size_; ++peer)
        if (region_->flags(peer).detail.value.load(std::memory_order_acquire) < seq_) ranks.push_back(peer);
      break;
    case Phase::idle:
    case Phase::publish_detail:
      break;
  }
  return ranks;
}

Progress CollectiveLane::publish_detail(const Operation& op) {
  if (!op.site) return Progress::waiting;  // the caller looks it up before it waits any longer
  Detail& detail = region_->detail(rank_);
  if (own_error_) {
    detail.error = 1 + static_cast<int32_t>(own_error_->code);
    std::snprintf(detail.text, sizeof detail.text, "%s, at %s", own_error_->message.c_str(), op.site);
  } else {
    detail.error = 0;
    std::snprintf(detail.text, sizeof detail.text, "%s at %s", describe(op).c_str(), op.site);
  }
  region_->flags(rank_).detail.value.store(op.seq, std::memory_order_release);
  region_->ring_peers();
  phase_ = Phase::details;
  return Progress::moved;
}

void CollectiveLane::raise_mismatch(const Operation& op) {
  Error error{ErrorCode::collective_mismatch, "operation number " + std::to_string(op.seq) + ": ", {}};
  // Ranks that wanted the same stand together.
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (int peer = 0; peer < size_; ++peer) {
    const Detail& detail = region_->detail(peer);
    const std::string text = detail.text;
    if (detail.error) {
      error.code = static_cast<ErrorCode>(detail.error - 1);
      error.ranks.push_back(peer);
    }
    auto group = groups.begin();
    while (group != groups.end() && group->first != text) ++group;
    if (group == groups.end()) group = groups.insert(group, {text, {}});
    group->second.push_back(peer);
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    if (i) error.message += "; ";
    error.message +=
        (groups[i].second.size() > 1 ? "ranks " : "rank ") + join_ranks(groups[i].second) + ": " + groups[i].first;
  }
  phase_ = Phase::idle;
  own_error_.reset();
  throw Failure(std::move(error));
}

bool CollectiveLane::cancel(Operation&) noexcept {
  task_ = Task();
  phase_ = Phase::idle;
  own_error_.reset();
  return false;  // the header line is out
}

std::optional<Error> CollectiveLane::health() {
  if (std::optional<Error> error = region_->look_at_peers()) return error;
  if (phase_ == Phase::idle) return std::nullopt;
  // A member that left took part in all it owed. Who has left is read first: all that it published is visible then.
  std::vector<bool> left;
  for (int peer = 0; peer < size_; ++peer) left.push_back(region_->has_left(peer));
  std::vector<int> gone;
  for (int peer : missing())
    if (left[static_cast<size_t>(peer)]) gone.push_back(peer);
  if (gone.empty()) return std::nullopt;
  return region_->peer_failure(gone);
}

}  // namespace hocket
