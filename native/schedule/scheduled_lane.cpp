#include "schedule/scheduled_lane.hpp"

#include <algorithm>

namespace hocket {

Progress ScheduledLane::post(Operation& op) {
  if (!op.program) return library_->post(op);
  runs_.push_back(op.seq);
  return test(op);
}

Progress ScheduledLane::test(Operation& op) {
  if (!op.program) return library_->test(op);
  if (runs_.front() != op.seq) return Progress::waiting;
  try {
    if (!executor_.is_running()) executor_.start(op);
    const Progress progress = executor_.drive();
    if (progress != Progress::done) return progress;
    op.sent_nbytes = executor_.sent_nbytes();
    runs_.pop_front();
    return progress;
  } catch (...) {
    runs_.pop_front();
    throw;
  }
}

std::vector<int> ScheduledLane::missing(const Operation& op) const {
  if (!op.program) return library_->missing(op);
  return executor_.is_running() ? executor_.missing() : std::vector<int>{};
}

bool ScheduledLane::cancel(Operation& op) noexcept {
  if (!op.program) return library_->cancel(op);
  if (!runs_.empty() && runs_.front() == op.seq) executor_.cancel();
  std::erase(runs_, op.seq);
  return false;
}

}  // namespace hocket
