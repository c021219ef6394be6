#include "sim/virtual_lanes.hpp"

#include <algorithm>

#include "core/local_result.hpp"
#include "core/traits.hpp"

namespace hocket::sim {

void Group::end(Posted& posted, double end_s, std::optional<Error> error) const {
  if (posted.is_dropped || posted.end_s) return;
  posted.end_s = end_s;
  posted.error = std::move(error);
  ranks.add_end(number(posted.rank), end_s);
}

Error Group::peer_failure(int rank) const {
  return {ErrorCode::peer_failure,
          "virtual rank " + std::to_string(rank) + " left the communicator before taking part",
          {rank}};
}

void Group::match(Channel& channel) const {
  while (!channel.receives.empty() && !channel.messages.empty() && channel.messages.front()->arrived_s()) {
    deliver(*channel.messages.front(), *channel.receives.front());
    channel.messages.pop_front();
    channel.receives.pop_front();
  }
}

void Group::deliver(const Message& message, Posted& receive) const {
  std::optional<Error> error;
  if (message.op().nbytes != receive.op.nbytes || message.op().dtype != receive.op.dtype) {
    const auto text = [](const Operation& op) { return describe(op) + " at " + (op.site ? op.site : "?"); };
    error = Error{ErrorCode::collective_mismatch,
                  "rank " + std::to_string(receive.rank) + ": " + text(receive.op) + "; rank " +
                      std::to_string(message.source()) + ": " + text(message.op()),
                  {message.source()}};
  } else if (ranks.moves_data && !receive.is_dropped) {
    copy_bytes(receive.op.out, message.data().data(), message.data().size());
  }
  end(receive, std::max(receive.posted_s, *message.arrived_s()), std::move(error));
}

void Group::connect(int rank) {
  std::vector<int> senders{rank};
  if (const Port& port = ports[static_cast<size_t>(rank)]; !port.receives.empty())
    senders.push_back(port.receives.front()->op.root);
  while (!senders.empty()) {
    const int source = senders.back();
    senders.pop_back();
    Port& from = ports[static_cast<size_t>(source)];
    if (from.sends.empty()) continue;
    const std::shared_ptr<Message> message = from.sends.front();
    Port& to = ports[static_cast<size_t>(message->op().root)];
    if (to.receives.empty() || to.receives.front()->op.root != source) continue;
    const std::shared_ptr<Posted> receive = to.receives.front();
    const double ready = std::max({message->posted_s(), receive->posted_s, from.sends_from_s, to.receives_from_s});
    from.sends.pop_front();
    to.receives.pop_front();
    from.sends_from_s = to.receives_from_s = ready;
    message->set_receive(receive);
    ranks.add_due(ready, message, shared_from_this());
    senders.push_back(source);
    if (!to.receives.empty()) senders.push_back(to.receives.front()->op.root);
  }
}

void Group::leave(int rank) {
  has_left[static_cast<size_t>(rank)] = has_any_left = true;
  if (std::find(has_left.begin(), has_left.end(), false) == has_left.end()) ranks.forget_group(key);
  if (failure) return;  // all members get this failure anyway
  const double now = now_s(rank);
  for (auto each = collectives.begin(); each != collectives.end();) {
    const std::vector<int> missing = each->second->missing();
    const auto next = std::next(each);
    if (std::find(missing.begin(), missing.end(), rank) != missing.end()) {
      each->second->fail(now, peer_failure(rank));
      collectives.erase(each);
    }
    each = next;
  }
  for (auto& [ends, channel] : channels)
    for (; std::get<0>(ends) == rank && channel.receives.size() > channel.messages.size(); channel.receives.pop_back())
      end(*channel.receives.back(), now, peer_failure(rank));
  for (const Port& port : ports)
    for (const auto& receive : port.receives)
      if (receive->op.root == rank) end(*receive, now, peer_failure(rank));
}

void Group::fail(int rank, const Error& error) {
  if (failure) return;
  failure = error;
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank) ranks.wake(number(peer), now_s(rank));
}

std::optional<Error> Group::failure_as_seen_by(int rank) const {
  std::optional<Error> error = failure;
  // The awaited rank has not timed out itself, so it gets another code.
  if (error && error->code == ErrorCode::comm_timeout &&
      std::find(error->ranks.begin(), error->ranks.end(), rank) != error->ranks.end())
    error->code = ErrorCode::aborted;
  return error;
}

bool PendingCollective::post(const std::shared_ptr<Posted>& posted) {
  posted_[static_cast<size_t>(posted->rank)] = posted;
  return ++num_posted_ == posted_.size();
}

std::vector<int> PendingCollective::missing() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < group_.size(); ++rank)
    if (!posted_[static_cast<size_t>(rank)]) ranks.push_back(rank);
  return ranks;
}

double PendingCollective::ready_s() const {
  double ready = 0;
  for (const auto& each : posted_) ready = std::max(ready, each->posted_s);
  return ready;
}

void PendingCollective::fail(double end_s, const Error& error) {
  for (const auto& each : posted_)
    if (each) group_.end(*each, end_s, error);
}

bool PendingCollective::agrees() const {
  uint64_t balance = 0;
  for (const auto& each : posted_) {
    if (fingerprint(each->op) != fingerprint(posted_[0]->op)) return false;
    if (each->op.kind == OpKind::all_to_allv) balance += balance_of(*each->op.blocks, each->rank);
  }
  return balance == 0;
}

std::string PendingCollective::mismatch_text() const {
  std::map<std::string, std::vector<int>> ranks_of;  // ranks by operation
  for (const auto& each : posted_)
    ranks_of[describe(each->op) + " at " + (each->op.site ? each->op.site : "?")].push_back(each->rank);
  std::vector<std::string> all_traits;
  for (const auto& each : posted_) all_traits.push_back(traits(each->op));
  std::string text = mismatch_head(posted_[0]->op.seq, all_traits);
  for (bool is_first = true; const auto& [what, ranks] : ranks_of) {
    text += (is_first ? "" : "; ") + ranks_text(ranks) + ": " + what;
    is_first = false;
  }
  return text;
}

// Whether a member has cancelled the operation: its arrays are gone, and the others get the group's failure.
bool PendingCollective::is_dropped() const {
  return std::any_of(posted_.begin(), posted_.end(), [](const auto& each) { return each->is_dropped; });
}

void PendingCollective::prepare(const Costs& costs) {
  if (is_dropped() || !agrees()) return;
  const Operation& any = posted_[0]->op;
  seconds_ = costs.collective_s(group_.key, any, group_.members);
  // split and dup always move data, because their results make new communicators.
  if (group_.ranks.moves_data || any.kind == OpKind::split || any.kind == OpKind::dup) move_data();
}

void PendingCollective::settle() {
  if (is_dropped()) return;
  const double ready = ready_s();
  if (!agrees()) return fail(ready, {ErrorCode::collective_mismatch, mismatch_text()});
  double begin = ready;
  for (const int member : group_.members)
    begin = std::max({begin, group_.ranks.sends_from_s(member), group_.ranks.receives_from_s(member)});
  const double end = begin + seconds_;
  for (const auto& each : posted_) {
    const int member = group_.number(each->rank);
    if (each->op.kind == OpKind::all_to_all) {
      const uint64_t nbytes = each->op.in_block(0).nbytes * static_cast<uint64_t>(group_.size() - 1);
      group_.ranks.count_bytes(member, nbytes, nbytes);
    } else if (each->op.kind == OpKind::all_to_allv) {
      for (int peer = 0; peer < group_.size(); ++peer) {
        if (peer == each->rank) continue;
        const uint64_t nbytes = each->op.in_block(peer).nbytes;
        group_.ranks.count_bytes(member, nbytes, 0);
        group_.ranks.count_bytes(group_.number(peer), 0, nbytes);
      }
    }
    group_.ranks.sends_from_s(member) = group_.ranks.receives_from_s(member) = end;
    group_.end(*each, end);
  }
}

// Reduced results go through separate memory, because an output may also be an input. Higher ranks come first, because
// in a scan lower ranks overwrite inputs that higher ranks read.
void PendingCollective::move_data() const {
  const Operation& any = posted_[0]->op;
  if (any.kind == OpKind::barrier) return;
  const int size = group_.size();
  std::vector<const std::byte*> sources(static_cast<size_t>(size));
  std::vector<std::byte> reduced;
  for (int rank = size; rank-- > 0;) {
    const Operation& op = posted_[static_cast<size_t>(rank)]->op;
    const auto block_for = [&](int peer) {
      const Operation& theirs = posted_[static_cast<size_t>(peer)]->op;
      return theirs.in + (has_input_blocks(op.kind) ? theirs.in_block(rank).offset : 0);
    };
    if (!reduces(op.kind)) {
      write_local_result(op, rank, size, op.out, block_for, sources);
      continue;
    }
    const uint64_t nbytes = has_input_blocks(op.kind) ? op.in_block(rank).nbytes : op.nbytes;
    const bool has_result = op.kind != OpKind::reduce || op.root == rank;
    if (op.kind != OpKind::all_reduce || reduced.empty()) {  // the result of an all_reduce is equal on all ranks
      reduced.resize(nbytes);
      write_local_result(op, rank, size, reduced.data(), block_for, sources);
    }
    if (has_result) copy_bytes(op.out, reduced.data(), nbytes);
  }
}

void Message::prepare(const Costs& costs) {
  if (send_->is_dropped) return;
  const Operation& op = send_->op;
  if (op.root != send_->rank) cost_ = costs.message(group_.number(send_->rank), group_.number(op.root), op.nbytes);
  if (group_.ranks.moves_data) data_.assign(op.in, op.in + op.nbytes);
}

void Message::settle() {
  if (send_->is_dropped) return;  // cancelled: the receiver gets the group's failure
  VirtualRanks& ranks = group_.ranks;
  const Operation& op = send_->op;
  double end = std::max(send_->posted_s, receive_ ? receive_->posted_s : 0);
  if (op.root != send_->rank) {
    double& sends_from = ranks.sends_from_s(group_.number(send_->rank));
    double& receives_from = ranks.receives_from_s(group_.number(op.root));
    double begin = std::max({end, sends_from, receives_from});
    for (const int link : cost_.shared) begin = std::max(begin, ranks.shared_from_s(link));
    for (const int link : cost_.shared) ranks.shared_from_s(link) = begin + cost_.occupied_s;
    sends_from = receives_from = end = begin + cost_.latency_s + cost_.occupied_s;
    ranks.count_bytes(group_.number(send_->rank), op.nbytes, 0);
    ranks.count_bytes(group_.number(op.root), 0, op.nbytes);
  }
  group_.end(*send_, end);
  arrived_s_ = end;
  if (receive_)
    group_.deliver(*this, *receive_);
  else
    group_.match(group_.channels[{send_->rank, op.root, op.tag}]);
}

std::shared_ptr<Posted> VirtualLane::hold(Operation& op) const {
  auto posted = std::make_shared<Posted>(Posted{.op = op, .rank = rank_, .posted_s = group_->now_s(rank_)});
  op.token = new std::shared_ptr<Posted>(posted);  // NOLINT: freed by test() or cancel()
  return posted;
}

void VirtualLane::check_failure() const {
  if (std::optional<Error> error = group_->failure_as_seen_by(rank_)) throw Failure(*error);
}

Progress VirtualLane::test(Operation& op) {
  const std::lock_guard lock(ranks_->mutex());
  auto* held = static_cast<std::shared_ptr<Posted>*>(op.token);
  Posted& posted = **held;
  if (!posted.end_s || *posted.end_s > group_->now_s(rank_)) return Progress::waiting;
  ranks_->forget_end(group_->number(rank_), *posted.end_s);
  const std::optional<Error> error = std::move(posted.error);
  delete held;
  op.token = nullptr;
  if (error) throw Failure(*error);
  return Progress::done;
}

bool VirtualLane::cancel(Operation& op) noexcept {
  const std::lock_guard lock(ranks_->mutex());
  auto* held = static_cast<std::shared_ptr<Posted>*>(op.token);
  (*held)->is_dropped = true;
  if ((*held)->end_s) ranks_->forget_end(group_->number(rank_), *(*held)->end_s);
  delete held;
  op.token = nullptr;
  return false;
}

std::optional<Error> VirtualLane::health() {
  const std::lock_guard lock(ranks_->mutex());
  return group_->failure_as_seen_by(rank_);
}

void VirtualLane::abandon(const Error& error) noexcept {
  const std::lock_guard lock(ranks_->mutex());
  group_->fail(rank_, error);
}

VirtualCollectives::~VirtualCollectives() {
  const std::lock_guard lock(ranks_->mutex());
  group_->leave(rank_);
}

Progress VirtualCollectives::post(Operation& op) {
  const std::lock_guard lock(ranks_->mutex());
  check_failure();
  const auto found = group_->collectives.try_emplace(op.seq, nullptr).first;
  if (!found->second) found->second = std::make_shared<PendingCollective>(*group_);
  const std::shared_ptr<PendingCollective> collective = found->second;
  if (group_->has_any_left)
    for (const int rank : collective->missing())
      if (group_->has_left[static_cast<size_t>(rank)]) throw Failure(group_->peer_failure(rank));
  if (collective->post(hold(op))) {
    group_->collectives.erase(found);
    ranks_->add_due(collective->ready_s(), collective, group_);
  }
  return Progress::moved;
}

std::vector<int> VirtualCollectives::missing(const Operation& op) const {
  const std::lock_guard lock(ranks_->mutex());
  const auto found = group_->collectives.find(op.seq);
  return found == group_->collectives.end() ? std::vector<int>{} : found->second->missing();
}

Progress VirtualMessages::post(Operation& op) {
  const std::lock_guard lock(ranks_->mutex());
  check_failure();
  if (op.kind == OpKind::send) {
    const auto message = std::make_shared<Message>(*group_, hold(op));
    group_->channels[{rank_, op.root, op.tag}].messages.push_back(message);
    ranks_->add_due(message->posted_s(), message, group_);
    return Progress::moved;
  }
  Group::Channel& channel = group_->channels[{op.root, rank_, op.tag}];
  if (group_->has_left[static_cast<size_t>(op.root)] && channel.receives.size() >= channel.messages.size())
    throw Failure(group_->peer_failure(op.root));
  channel.receives.push_back(hold(op));
  group_->match(channel);
  return Progress::moved;
}

// Unnoticed if no message was matched to the receive.
bool VirtualMessages::cancel(Operation& op) noexcept {
  bool is_unnoticed = false;
  if (op.kind == OpKind::recv) {
    const std::lock_guard lock(ranks_->mutex());
    const auto* held = static_cast<std::shared_ptr<Posted>*>(op.token);
    is_unnoticed = std::erase(group_->channels[{op.root, rank_, op.tag}].receives, *held) > 0;
  }
  VirtualLane::cancel(op);
  return is_unnoticed;
}

Progress VirtualTransfers::post(Operation& op) {
  const std::lock_guard lock(ranks_->mutex());
  check_failure();
  Group::Port& port = group_->ports[static_cast<size_t>(rank_)];
  if (op.kind == OpKind::send) {
    port.sends.push_back(std::make_shared<Message>(*group_, hold(op)));
  } else {
    if (group_->has_left[static_cast<size_t>(op.root)]) throw Failure(group_->peer_failure(op.root));
    port.receives.push_back(hold(op));
  }
  group_->connect(rank_);
  return Progress::moved;
}

}  // namespace hocket::sim
