#include "shm/point_to_point_lane.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "core/clock.hpp"
#include "core/copy.hpp"

namespace hocket {

namespace {

constexpr uint64_t kAlign = 64;
constexpr uint64_t round_up(uint64_t value) { return (value + kAlign - 1) / kAlign * kAlign; }

void write_ring(SharedWriter& writer, std::byte* ring, size_t ring_bytes, uint64_t position, const void* from,
                size_t nbytes) {
  const size_t begin = position % ring_bytes;
  const size_t first = std::min(nbytes, ring_bytes - begin);
  writer.write(ring + begin, static_cast<const std::byte*>(from), first);
  writer.write(ring, static_cast<const std::byte*>(from) + first, nbytes - first);
}

void read_ring(const std::byte* ring, size_t ring_bytes, uint64_t position, void* to, size_t nbytes) {
  const size_t begin = position % ring_bytes;
  const size_t first = std::min(nbytes, ring_bytes - begin);
  std::memcpy(to, ring + begin, first);
  std::memcpy(static_cast<std::byte*>(to) + first, ring, nbytes - first);
}

}  // namespace

PointToPointLane::PointToPointLane(std::shared_ptr<Region> region)
    : region_(std::move(region)),
      rank_(region_->rank),
      out_(static_cast<size_t>(region_->size)),
      in_(static_cast<size_t>(region_->size)) {}

Progress PointToPointLane::post(Operation& op) {
  const int peer = op.root;
  if (op.kind == OpKind::send) {
    region_->need_pipe(peer);
    Outgoing& out = out_[peer];
    out.transfers.push_back({.op = op, .error = {}});
    op.token = &out.transfers.back();
    return Progress::moved;
  }
  Incoming& in = in_[peer];
  in.transfers.push_back({.op = op, .error = {}});
  Transfer& transfer = in.transfers.back();
  op.token = &transfer;
  const auto found = std::find_if(in.unexpected.begin(), in.unexpected.end(), [&](const Message& message) {
    return message.envelope.tag == op.tag && !message.receive;
  });
  if (found != in.unexpected.end()) hand_over(peer, in, transfer, found);
  return Progress::moved;
}

void PointToPointLane::hand_over(int peer, Incoming& in, Transfer& transfer, std::list<Message>::iterator message) {
  if (message->taking_in && !message->taking_in->done) {
    message->receive = &transfer;  // receive() hands it over once it is here
    transfer.in_ring_queue = false;
    return;
  }
  if (message->taking_in) message->envelope.id = 0;  // it is here, as a short one would be
  const Message whole = std::move(*message);
  in.unexpected.erase(message);
  accept(peer, in, transfer, whole.envelope, whole.payload.data());
}

Progress PointToPointLane::test(Operation& op) {
  const int peer = op.root;
  auto* transfer = static_cast<Transfer*>(op.token);
  const bool left = region_->has_left(peer);  // before the last look at what it published
  bool moved = op.kind == OpKind::send ? drive_out(peer) : drive_in(peer);
  if (op.kind == OpKind::send && is_stuck(*transfer))
    for (int other = 0; other < region_->size; ++other) moved |= take_in(other);
  if (!transfer->done && !transfer->error) {
    if (left && !moved) {  // it may have left more than is taken in at once
      cancel(op);
      throw Failure(region_->peer_failure({peer}));
    }
    return moved ? Progress::moved : Progress::waiting;
  }
  std::optional<Error> error = std::move(transfer->error);
  Transfers& transfers = op.kind == OpKind::send ? out_[peer].transfers : in_[peer].transfers;
  transfers.remove_if([&](const Transfer& each) { return &each == transfer; });
  op.token = nullptr;
  if (error) throw Failure(std::move(*error));
  return Progress::done;
}

// Whether a send has found no room, or no receive, for so long that the reason may be that everyone sends.
bool PointToPointLane::is_stuck(Transfer& transfer) const {
  constexpr int64_t kPatienceNs = 2'000'000;
  if (transfer.done) return false;
  const int64_t now = now_ns();
  if (transfer.stuck_since_ns == 0 || transfer.position != transfer.stuck_position) {
    transfer.stuck_since_ns = now;
    transfer.stuck_position = transfer.position;
  }
  return now - transfer.stuck_since_ns > kPatienceNs;
}

bool PointToPointLane::take_in(int peer) {
  Incoming& in = in_[peer];
  bool moved = match_ring(peer, in, true);
  for (Message& message : in.unexpected) {
    if (!message.envelope.id || message.taking_in) continue;
    message.payload.resize(message.envelope.nbytes);
    message.taking_in = std::make_unique<Transfer>();
    message.taking_in->op.nbytes = message.envelope.nbytes;
    message.taking_in->op.out = message.payload.data();
    in.to_grant.push_back({message.envelope.id, message.taking_in.get()});
    moved = true;
  }
  return receive(peer, in) || moved;
}

std::optional<int> PointToPointLane::find_sender(int tag) {
  for (int step = 1; step <= region_->size; ++step) {
    const int peer = (last_found_ + step) % region_->size;
    take_in(peer);
    for (const Message& message : in_[peer].unexpected)
      if (message.envelope.tag == tag && !message.receive) return last_found_ = peer;
  }
  return std::nullopt;
}

bool PointToPointLane::drive_out(int peer) {
  Outgoing& out = out_[peer];
  bool moved = false;
  for (Transfer& transfer : out.transfers) {
    if (!transfer.in_ring_queue) continue;
    if (!enter_ring(peer, out, transfer)) break;
    moved = true;
  }
  return stream(peer, out) || moved;
}

bool PointToPointLane::enter_ring(int peer, Outgoing& out, Transfer& transfer) {
  PipeControl& control = region_->control(rank_, peer);
  const Operation& op = transfer.op;
  const bool is_long = op.nbytes > region_->ring_message_bytes;
  const uint64_t need = sizeof(Envelope) + (is_long ? 0 : round_up(op.nbytes));
  if (region_->ring_bytes - (out.head - control.tail.value.load(std::memory_order_acquire)) < need) return false;
  Envelope envelope{op.nbytes, is_long ? ++out.last_id : 0, op.tag, op.dtype, {}};
  std::snprintf(envelope.site, sizeof envelope.site, "%s", op.site ? op.site : "?");
  std::byte* ring = region_->ring_of(rank_, peer);
  write_ring(writer_, ring, region_->ring_bytes, out.head, &envelope, sizeof envelope);
  if (!is_long && op.nbytes)
    write_ring(writer_, ring, region_->ring_bytes, out.head + sizeof envelope, op.in, op.nbytes);
  out.head += need;
  control.head.value.store(out.head, std::memory_order_release);
  region_->ring_peer(peer);
  transfer.in_ring_queue = false;
  transfer.id = envelope.id;
  transfer.done = !is_long;
  return true;
}

bool PointToPointLane::stream(int peer, Outgoing& out) {
  PipeControl& control = region_->control(rank_, peer);
  if (!out.streaming) {
    const uint64_t grant = control.granted.value.load(std::memory_order_acquire);
    if (grant == out.last_grant) return false;
    const uint64_t id = grant & ~kRefused;
    const auto found = std::find_if(out.transfers.begin(), out.transfers.end(),
                                    [&](const Transfer& transfer) { return transfer.id == id; });
    if (found == out.transfers.end()) return false;
    out.last_grant = grant;
    out.streaming = &*found;
    out.streaming->refused = grant & kRefused;
  }
  Transfer& transfer = *out.streaming;
  bool moved = false;
  for (size_t slots = 0; slots < kMostSlots; ++slots) {
    if (out.produced - control.consumed.value.load(std::memory_order_acquire) == region_->num_bulk_slots) break;
    const uint64_t nbytes = std::min<uint64_t>(kBulkBytes, transfer.op.nbytes - transfer.position);
    // A refused message ends with one empty slot, so that the receiver knows that the refusal was read.
    if (!transfer.refused) {
      writer_.write(region_->bulk_slot(rank_, peer, out.produced), transfer.op.in + transfer.position, nbytes);
      transfer.position += nbytes;
    }
    control.produced.value.store(++out.produced, std::memory_order_release);
    region_->ring_peer(peer);
    moved = true;
    if (transfer.refused)
      transfer.error = Error{ErrorCode::collective_mismatch,
                             "rank " + std::to_string(rank_) + ": " + describe(transfer.op) + " at " +
                                 (transfer.op.site ? transfer.op.site : "?") + "; rank " + std::to_string(peer) +
                                 " expected another size or type and raises as well",
                             {peer}};
    if (transfer.refused || transfer.position == transfer.op.nbytes) {
      transfer.done = true;
      out.streaming = nullptr;
      break;
    }
  }
  return moved;
}

bool PointToPointLane::drive_in(int peer) {
  Incoming& in = in_[peer];
  const bool matched = match_ring(peer, in);
  return receive(peer, in) || matched;
}

PointToPointLane::Transfer* PointToPointLane::find_posted(Incoming& in, int tag) {
  for (Transfer& transfer : in.transfers)
    if (transfer.in_ring_queue && transfer.op.tag == tag) return &transfer;
  return nullptr;
}

// Takes messages out of the ring while there is a receive that still looks for one; with none, they stay there and hold
// the sender back.
bool PointToPointLane::match_ring(int peer, Incoming& in, bool take_all) {
  PipeControl& control = region_->control(peer, rank_);
  bool moved = false;
  const uint64_t limit = in.tail + region_->ring_bytes;
  while (in.tail < limit && in.tail != control.head.value.load(std::memory_order_acquire)) {
    const bool any_posted = take_all || std::any_of(in.transfers.begin(), in.transfers.end(),
                                                    [](const Transfer& transfer) { return transfer.in_ring_queue; });
    if (!any_posted) break;
    const std::byte* ring = region_->ring_of(peer, rank_);
    Envelope envelope;
    read_ring(ring, region_->ring_bytes, in.tail, &envelope, sizeof envelope);
    const size_t nbytes = envelope.id ? 0 : envelope.nbytes;
    Transfer* const transfer = find_posted(in, envelope.tag);
    if (transfer && !envelope.id && nbytes == transfer->op.nbytes && envelope.dtype == transfer->op.dtype) {
      transfer->in_ring_queue = false;
      if (nbytes) read_ring(ring, region_->ring_bytes, in.tail + sizeof envelope, transfer->op.out, nbytes);
      transfer->done = true;
    } else {
      std::vector<std::byte> payload(nbytes);
      if (nbytes) read_ring(ring, region_->ring_bytes, in.tail + sizeof envelope, payload.data(), nbytes);
      if (transfer)
        accept(peer, in, *transfer, envelope, payload.data());
      else
        in.unexpected.push_back({envelope, std::move(payload), nullptr, nullptr});
    }
    in.tail += sizeof envelope + round_up(nbytes);
    control.tail.value.store(in.tail, std::memory_order_release);
    region_->ring_peer(peer);
    moved = true;
  }
  return moved;
}

void PointToPointLane::accept(int peer, Incoming& in, Transfer& transfer, const Envelope& envelope,
                              const std::byte* payload) {
  transfer.in_ring_queue = false;
  const bool fits = envelope.nbytes == transfer.op.nbytes && envelope.dtype == transfer.op.dtype;
  if (!fits) transfer.error = mismatch(peer, transfer, envelope);
  if (envelope.id) {
    in.to_grant.push_back({envelope.id, fits ? &transfer : nullptr});
  } else if (fits) {
    if (envelope.nbytes) std::memcpy(transfer.op.out, payload, envelope.nbytes);
    transfer.done = true;
  }
}

bool PointToPointLane::receive(int peer, Incoming& in) {
  PipeControl& control = region_->control(peer, rank_);
  bool moved = false;
  size_t slots = 0;
  while (!in.to_grant.empty()) {
    const Incoming::Grant& grant = in.to_grant.front();
    const auto& [id, transfer] = grant;
    if (!in.granted) {
      control.granted.value.store(transfer ? id : id | kRefused, std::memory_order_release);
      region_->ring_peer(peer);
      in.granted = true;
      moved = true;
    }
    bool complete = false;
    while (!complete && slots < kMostSlots && control.produced.value.load(std::memory_order_acquire) > in.consumed) {
      ++slots;
      if (transfer) {
        const uint64_t nbytes = std::min<uint64_t>(kBulkBytes, transfer->op.nbytes - transfer->position);
        copy_into_array(transfer->op.out + transfer->position, region_->bulk_slot(peer, rank_, in.consumed), nbytes,
                        transfer->op.nbytes);
        transfer->position += nbytes;
      }
      control.consumed.value.store(++in.consumed, std::memory_order_release);
      region_->ring_peer(peer);
      moved = true;
      complete = !transfer || transfer->position == transfer->op.nbytes;
    }
    if (!complete) break;
    Transfer* const over = transfer;
    if (over) over->done = true;
    in.to_grant.pop_front();
    in.granted = false;
    const auto taken = std::find_if(in.unexpected.begin(), in.unexpected.end(),
                                    [&](const Message& message) { return over && message.taking_in.get() == over; });
    if (taken != in.unexpected.end() && taken->receive) hand_over(peer, in, *taken->receive, taken);
  }
  return moved;
}

Error PointToPointLane::mismatch(int peer, const Transfer& transfer, const Envelope& envelope) const {
  return {ErrorCode::collective_mismatch,
          "rank " + std::to_string(rank_) + ": " + describe(transfer.op) + " at " +
              (transfer.op.site ? transfer.op.site : "?") + "; rank " + std::to_string(peer) + " sent " +
              std::to_string(envelope.nbytes) + " bytes " + name(envelope.dtype) + " at " + envelope.site,
          {peer}};
}

bool PointToPointLane::cancel(Operation& op) noexcept {
  auto* transfer = static_cast<Transfer*>(op.token);
  const bool unnoticed = transfer->in_ring_queue;
  if (op.kind == OpKind::send && out_[op.root].streaming == transfer) out_[op.root].streaming = nullptr;
  if (op.kind == OpKind::recv) {
    std::erase_if(in_[op.root].to_grant, [&](const auto& grant) { return grant.transfer == transfer; });
    for (Message& message : in_[op.root].unexpected)
      if (message.receive == transfer) message.receive = nullptr;
  }
  Transfers& transfers = op.kind == OpKind::send ? out_[op.root].transfers : in_[op.root].transfers;
  transfers.remove_if([&](const Transfer& each) { return &each == transfer; });
  op.token = nullptr;
  return unnoticed;
}

}  // namespace hocket
