// Messages that have come and that nothing receives: who looks for them, and what is said of them.
#include <set>

#include "core/operation.hpp"
#include "shm/point_to_point_lane.hpp"

namespace hocket {

std::optional<int> PointToPointLane::find_sender(int tag) {
  for (int step = 1; step <= region_->size; ++step) {
    const int peer = (last_found_ + step) % region_->size;
    take_in(peer);
    for (const Message& message : in_[peer].unexpected)
      if (message.envelope.tag == tag && !message.receive) return last_found_ = peer;
  }
  return std::nullopt;
}

std::string PointToPointLane::hint(const Operation& op) {
  if (op.kind != OpKind::recv) return "";
  match_ring(op.root, in_[op.root], true);  // what is in the ring, and not the rest of long messages
  std::set<int> tags;
  for (const Message& message : in_[op.root].unexpected)
    if (!message.receive) tags.insert(message.envelope.tag);
  if (tags.empty()) return "";
  std::string text = "; what rank " + std::to_string(op.root) + " sent has tag";
  for (bool is_first = true; int tag : tags) {
    text += (is_first ? " " : ", ") + std::to_string(tag);
    is_first = false;
  }
  return text + ", not " + std::to_string(op.tag);
}

std::string PointToPointLane::unreceived() {
  constexpr int kMostNamed = 3;
  std::string text;
  int num_found = 0;
  for (int peer = 0; peer < region_->size; ++peer) {
    match_ring(peer, in_[peer], true);
    for (const Message& message : in_[peer].unexpected) {
      if (message.receive || ++num_found > kMostNamed) continue;
      const Envelope& envelope = message.envelope;
      text.append(text.empty() ? "" : "; ").append("rank ").append(std::to_string(peer)).append(" sent with tag ");
      text.append(std::to_string(envelope.tag)).append(", ");
      text.append(content_text(envelope.nbytes, envelope.dtype, envelope.is_of_object));
      text.append(" at ").append(message.site);
    }
  }
  if (num_found > kMostNamed) text.append("; and ").append(std::to_string(num_found - kMostNamed)).append(" more");
  return text;
}

}  // namespace hocket
