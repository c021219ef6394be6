// Unexpected messages (arrived, but no receive is posted): the search for them, and their text in messages to the user.
#include <set>

#include "core/operation.hpp"
#include "shm/point_to_point_lane.hpp"

namespace hocket {

std::optional<int> PointToPointLane::find_sender(int tag) {
  for (int step = 1; step <= region_->size; ++step) {
    const int peer = (last_found_ + step) % region_->size;
    buffer_unexpected(peer);
    for (const Message& message : in_[peer].unexpected)
      if (message.envelope.tag == tag && !message.receive) return last_found_ = peer;
  }
  return std::nullopt;
}

std::string PointToPointLane::hint(const Operation& op) {
  if (op.kind != OpKind::recv) return "";
  match_ring(op.root, in_[op.root], true);  // reads the ring, but not the payloads of long messages
  std::set<int> tags;
  for (const Message& message : in_[op.root].unexpected)
    if (!message.receive) tags.insert(message.envelope.tag);
  if (tags.empty()) return "";
  std::string text = "; rank " + std::to_string(op.root) + " has sent messages with tag";
  for (bool is_first = true; int tag : tags) {
    text += (is_first ? " " : ", ") + std::to_string(tag);
    is_first = false;
  }
  return text + ", not " + std::to_string(op.tag);
}

// The messages stay in the ring: removing one would make room, and a blocked send would complete.
std::string PointToPointLane::unreceived() {
  constexpr int kMostNamed = 3;
  std::string text;
  int num_found = 0;
  for (int peer = 0; peer < region_->size; ++peer) {
    std::set<int> announced;  // tags of objects whose size message has arrived
    const auto add_message = [&](const Envelope& envelope, const std::string& site) {
      if (envelope.is_of_object && envelope.dtype == DType::int64)
        announced.insert(envelope.tag);
      else if (envelope.is_of_object && announced.erase(envelope.tag))
        return;  // the object of an announced size is already counted
      if (++num_found > kMostNamed) return;
      text.append(text.empty() ? "" : "; ").append("rank ").append(std::to_string(peer)).append(" sent with tag ");
      text.append(std::to_string(envelope.tag)).append(", ");
      text.append(envelope.is_of_object && announced.contains(envelope.tag)
                      ? "an object"
                      : content_text(envelope.nbytes, envelope.dtype, envelope.is_of_object));
      text.append(" at ").append(site);
    };
    const Incoming& in = in_[peer];
    for (const Message& message : in.unexpected)
      if (!message.receive) add_message(message.envelope, message.site);
    if (region_->control(channel_, peer, rank_).head.value.load(std::memory_order_acquire) == 0) continue;
    uint64_t position = in.tail;
    if (in.reading) position += bytes_in_ring(in.reading->envelope);
    while (position < in.tail + region_->ring_bytes) {
      const Head& head = head_at(peer, rank_, position);
      if (!head.is_published.load(std::memory_order_acquire)) break;
      const Envelope envelope = head.envelope;
      if (!envelope.id && envelope.nbytes > region_->ring_message_bytes) break;
      add_message(envelope, site_at(peer, position));
      position += bytes_in_ring(envelope);
    }
  }
  if (num_found > kMostNamed) text.append("; and ").append(std::to_string(num_found - kMostNamed)).append(" more");
  return text;
}

}  // namespace hocket
