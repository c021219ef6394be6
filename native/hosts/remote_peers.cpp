#include "hosts/remote_peers.hpp"

#include <algorithm>

#include "core/clock.hpp"
#include "core/process.hpp"

namespace hocket {

RemotePeers::RemotePeers(std::shared_ptr<Control> control, std::vector<int> members, int rank_, uint64_t key,
                         std::vector<std::string> backends)
    : rank(rank_),
      size(static_cast<int>(members.size())),
      control_(std::move(control)),
      members_(std::move(members)),
      key_(key) {
  const std::lock_guard guard(control_->mutex_);
  Control::Group& group = control_->groups_[key_];
  group.num_members = members_.size();
  group.backends = std::move(backends);
}

RemotePeers::~RemotePeers() {
  if (g_forked_child.load(std::memory_order_relaxed)) return;  // the parent has not left
  const std::lock_guard guard(control_->mutex_);
  Control::Group& group = control_->groups_[key_];
  control_->send(
      {.kind = Notice::Kind::left, .key = key_, .members = members_, .seq = group.last, .history = group.history});
  group.is_closed = true;
  control_->forget_if_all_left(key_);
}

Error RemotePeers::peer_failure(const std::vector<int>& ranks, const char* what) const {
  std::string text;
  for (const int peer : ranks) {
    if (!text.empty()) text += "; ";
    const auto job_rank = static_cast<size_t>(members_[static_cast<size_t>(peer)]);
    text += "rank " + std::to_string(peer) + " (" + control_->places_[job_rank] + ") " + what;
  }
  return {ErrorCode::peer_failure, text, ranks};
}

std::optional<Error> RemotePeers::failure_as_seen_here(const Control::Group& group) const {
  std::optional<Error> error = group.failure;
  if (!error || error->code != ErrorCode::comm_timeout) return error;
  // The awaited rank has not timed out itself, so it gets another code.
  if (std::find(error->ranks.begin(), error->ranks.end(), rank) != error->ranks.end()) error->code = ErrorCode::aborted;
  return error;
}

std::optional<Error> RemotePeers::find_failure() const {
  const std::lock_guard guard(control_->mutex_);
  return failure_as_seen_here(control_->groups_[key_]);
}

std::optional<Error> RemotePeers::check_peers() const {
  const std::lock_guard guard(control_->mutex_);
  Control::Group& group = control_->groups_[key_];
  // Compare histories with the members that left, so that no operation waits in vain for a member that left early.
  for (const auto& [peer, left] : group.left) {
    const Control::Logged& own = group.log[left.seq % Control::kLogged];
    if (group.failure || own.op.seq != left.seq || own.history == left.history) continue;
    group.failure = Error{
        ErrorCode::collective_mismatch,
        "rank " + std::to_string(peer) + " left the communicator after operation number " + std::to_string(left.seq) +
            ", but the operations that it issued up to there differ from " + "those of rank " + std::to_string(rank)};
  }
  if (std::optional<Error> error = failure_as_seen_here(group)) return error;
  std::vector<int> dead;
  for (int peer = 0; peer < size; ++peer)
    if (control_->dead_[static_cast<size_t>(members_[static_cast<size_t>(peer)])]) dead.push_back(peer);
  if (!dead.empty()) return peer_failure(dead, "died");
  return control_->lost_;
}

void RemotePeers::post_abort(const Error& error) const {
  const std::lock_guard guard(control_->mutex_);
  Control::Group& group = control_->groups_[key_];
  if (group.failure) return;  // all members are already notified
  group.failure = error;
  control_->send({.kind = Notice::Kind::aborted, .key = key_, .members = members_, .error = error});
}

void RemotePeers::note_issued(const Operation& op) const {
  const std::lock_guard guard(control_->mutex_);
  Control::Group& group = control_->groups_[key_];
  group.last = op.seq;
  group.history = (group.history ^ fingerprint(op)) * 0x9E3779B97F4A7C15ull;
  group.history ^= group.history >> 31;
  Control::Logged& logged = group.log[op.seq % Control::kLogged];
  logged = {op, fingerprint(op), group.history};
  logged.op.blocks = nullptr;
  if (op.seq % Control::kIssuedPeriod == 0)
    control_->send(
        {.kind = Notice::Kind::issued, .key = key_, .members = members_, .seq = op.seq, .history = group.history});
}

std::optional<Error> RemotePeers::find_left(const Operation& op) const {
  // Messages that a member sent before it left may still be in flight; operations that it did not issue never come.
  constexpr int64_t kUnderWayNs = 2'000'000'000;
  const std::lock_guard guard(control_->mutex_);
  const Control::Group& group = control_->groups_[key_];
  std::vector<int> gone;
  for (const auto& [peer, left] : group.left) {
    const bool owes =
        is_point_to_point(op.kind) ? op.root == peer && now_ns() - left.noted_ns > kUnderWayNs : op.seq > left.seq;
    if (owes) gone.push_back(peer);
  }
  if (gone.empty()) return std::nullopt;
  // A member that aborted the communicator sent that notice before it left.
  if (std::optional<Error> error = failure_as_seen_here(group)) return error;
  return peer_failure(gone, "left the communicator before taking part");
}

void RemotePeers::report_stall(const Operation& op) const {
  const std::lock_guard guard(control_->mutex_);
  control_->send({.kind = Notice::Kind::stalled, .key = key_, .members = members_, .seq = op.seq});
}

std::vector<int> RemotePeers::behind(const Operation& op) const {
  const std::lock_guard guard(control_->mutex_);
  const Control::Group& group = control_->groups_[key_];
  return group.stalled_seq == op.seq ? group.behind : std::vector<int>{};
}

}  // namespace hocket
