#include "hosts/remote_lane.hpp"

#include "core/clock.hpp"

namespace hocket {

namespace {

constexpr int64_t kFirstReportNs = 500'000'000;
constexpr int64_t kReportPeriodNs = 2'000'000'000;

}  // namespace

Progress RemoteLane::forget_if_done(const Operation& op, Progress state) {
  if (state != Progress::done) return state;
  posted_.erase(key_of(op));
  // A member that aborted may have overwritten its array before the library sent it: check before reporting success.
  if (std::optional<Error> error = peers_->find_failure()) throw Failure(*error);
  return state;
}

Progress RemoteLane::post(Operation& op) {
  // The library may not know that the others aborted the communicator, and would take part with outdated data of
  // theirs.
  if (std::optional<Error> error = peers_->check_peers()) throw Failure(*error);
  posted_.insert_or_assign(key_of(op), Posted{op, now_ns() + kFirstReportNs});
  try {
    return forget_if_done(op, library_->post(op));
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
        // The library may have failed because another member called it with another operation: ask at once.
        if (!is_point_to_point(op.kind)) peers_->report_stall(op);
        posted_.erase(found);
      }
    }
    return forget_if_done(op, library_->test(op));
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
  if (std::optional<Error> error = peers_->check_peers()) return error;
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
