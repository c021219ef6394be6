#include "hosts/control.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/clock.hpp"
#include "core/traits.hpp"

namespace hocket {

Control::Control(std::vector<std::string> places)
    : places_(std::move(places)), fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), dead_(places_.size()) {
  if (fd_ < 0)
    throw Failure(ErrorCode::resource_exhausted, std::string("cannot create an eventfd: ") + std::strerror(errno));
}

Control::~Control() { ::close(fd_); }

void Control::send(Notice notice) {
  notices_.push_back(std::move(notice));
  const uint64_t one = 1;
  // The write fails only if the counter is full; then fd_ is already readable.
  [[maybe_unused]] const ssize_t written = ::write(fd_, &one, sizeof one);
}

std::vector<Notice> Control::take_notices() {
  const std::lock_guard guard(mutex_);
  uint64_t count;
  [[maybe_unused]] const ssize_t read = ::read(fd_, &count, sizeof count);
  std::vector<Notice> taken(std::make_move_iterator(notices_.begin()), std::make_move_iterator(notices_.end()));
  notices_.clear();
  return taken;
}

void Control::note_death(int job_rank) {
  check_rank(job_rank);
  const std::lock_guard guard(mutex_);
  dead_[static_cast<size_t>(job_rank)] = true;
}

std::vector<int> Control::dead() {
  const std::lock_guard guard(mutex_);
  std::vector<int> dead;
  for (size_t rank = 0; rank < dead_.size(); ++rank)
    if (dead_[rank]) dead.push_back(static_cast<int>(rank));
  return dead;
}

void Control::note_lost(std::string why) {
  const std::lock_guard guard(mutex_);
  if (!lost_) lost_ = Error{ErrorCode::aborted, std::move(why)};
}

void Control::note_left(uint64_t key, int rank, uint64_t seq, uint64_t history) {
  check_rank(rank);
  const std::lock_guard guard(mutex_);
  group_of(key).left.try_emplace(rank, Left{seq, history, now_ns()});
  forget_if_all_left(key);
}

void Control::note_abort(uint64_t key, Error error) {
  for (int rank : error.ranks) check_rank(rank);
  const std::lock_guard guard(mutex_);
  Group& group = group_of(key);
  if (!group.failure) group.failure = std::move(error);
}

void Control::note_verdict(uint64_t key, uint64_t seq, std::vector<int> behind, std::string mismatch) {
  for (int rank : behind) check_rank(rank);
  const std::lock_guard guard(mutex_);
  const auto found = groups_.find(key);
  if (found == groups_.end() || found->second.is_closed) return;
  Group& group = found->second;
  group.stalled_seq = seq;
  group.behind = std::move(behind);
  if (!mismatch.empty() && !group.failure) group.failure = Error{ErrorCode::collective_mismatch, std::move(mismatch)};
}

std::optional<Control::Report> Control::report(uint64_t key, uint64_t seq) {
  const std::lock_guard guard(mutex_);
  const auto found = groups_.find(key);
  if (found == groups_.end() || found->second.num_members == 0) return std::nullopt;
  const Group& group = found->second;
  Report report{group.last, 0, "", ""};
  const Logged& logged = group.log[seq % kLogged];
  const Operation& op = logged.op;
  if (op.seq == seq) {
    report.fingerprint = logged.fingerprint;
    report.traits = traits(op);
    report.text = describe(op) + " on " + group.backends[op.backend];
    if (op.site) report.text += std::string(" at ") + op.site;
  }
  return report;
}

std::vector<uint64_t> Control::histories(uint64_t key, uint64_t seq) {
  const std::lock_guard guard(mutex_);
  std::vector<uint64_t> histories;
  const auto found = groups_.find(key);
  for (uint64_t i = 0; i < kIssuedPeriod; ++i) {  // numbers below 1 wrap around and match no operation
    const uint64_t each = seq - (kIssuedPeriod - 1) + i;
    const Logged* logged = found == groups_.end() ? nullptr : &found->second.log[each % kLogged];
    histories.push_back(logged && logged->op.seq == each ? logged->history : 0);
  }
  return histories;
}

// No communicator has more members than the job.
void Control::check_rank(int rank) const {
  if (rank < 0 || static_cast<size_t>(rank) >= places_.size())
    throw Failure(ErrorCode::invalid_argument, "received a notice about rank " + std::to_string(rank) +
                                                   ", but the job has " + std::to_string(places_.size()) + " ranks");
}

// Notices about a communicator may arrive before it is opened here; the number of such communicators is limited.
Control::Group& Control::group_of(uint64_t key) {
  const auto found = groups_.find(key);
  if (found != groups_.end()) return found->second;
  const auto is_unopened = [](const auto& entry) { return entry.second.num_members == 0; };
  if (static_cast<size_t>(std::count_if(groups_.begin(), groups_.end(), is_unopened)) >= kMostUnopened)
    throw Failure(ErrorCode::resource_exhausted, "other ranks sent notices about more than " +
                                                     std::to_string(kMostUnopened) +
                                                     " communicators that are not open on this rank");
  return groups_[key];
}

// When all members have left, no further notice arrives.
void Control::forget_if_all_left(uint64_t key) {
  const auto found = groups_.find(key);
  const Group& group = found->second;
  if (group.is_closed && group.left.size() + 1 >= group.num_members) groups_.erase(found);
}

}  // namespace hocket
