#include "hosts/remote_lane.hpp"

#include "core/clock.hpp"

namespace hocket {

namespace {

constexpr int64_t kFirstReportNs = 500'000'000;
constexpr int64_t kReportPeriodNs = 2'000'000'000;

}  // namespace

Progress RemoteLane::forget_if_over(const Operation& op, Progress state) {
  if (state != Progress::done) return state;
  posted_.erase(key_of(op));
  // The arrays of a member that gave it up may have been written to again before the library sent them.
  if (std::optional<Error> error = peers_->find_failure()) throw Failure(*error);
  return state;
}

Progress RemoteLane::post(Operation& op) {
  // Of one that the others have given up the library may know nothing, and take part with whatever it has of theirs.
  if (std::optional<Error> error = peers_->look_at_peers()) throw Failure(*error);
  posted_.insert_or_assign(key_of(op), Posted{op, now_ns() + kFirstReportNs});
  try {
    return forget_if_over(op, library_->post(op));
  } catch (...) {
    posted_.erase(key_of(op));
    throw;
  }
}

Progress RemoteLane::test(Operation& op) {
  try {
    if (watched_.holds(op)) {
      if (std::optional<Error> error = peers_->find_left(op)) {
        library_->cancel(op);
        throw Failure(*error);
      }
      if (const auto found = posted_.find(key_of(op)); found != posted_.end()) {
        // A library that fails may have been given something else by another member: no need to wait before asking.
        if (!is_point_to_point(op.kind)) peers_->report_stall(op);
        posted_.erase(found);
      }
    }
    return forget_if_over(op, library_->test(op));
  } catch (...) {
    posted_.erase(key_of(op));
    throw;
  }
}

std::vector<int> RemoteLane::missing(const Operation& op) const {
  if (is_point_to_point(op.kind)) return {op.root};
  if (std::vector<int> ranks = peers_->behind(op); !ranks.empty()) return ranks;
  return library_->missing(op);
}

bool RemoteLane::cancel(Operation& op) noexcept {
  posted_.erase(key_of(op));
  return library_->cancel(op);
}

std::optional<Error> RemoteLane::health() {
  if (std::optional<Error> error = peers_->look_at_peers()) return error;
  const int64_t now = now_ns();
  for (auto& [key, posted] : posted_) {
    if (std::optional<Error> error = peers_->find_left(posted.op)) return error;
    if (is_point_to_point(posted.op.kind) || now < posted.next_report_ns) continue;
    posted.next_report_ns = now + kReportPeriodNs;
    peers_->report_stall(posted.op);
  }
  return library_->health();
}

}  // namespace hocket
