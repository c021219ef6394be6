#include "shm/point_to_point_lane.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/clock.hpp"
#include "core/copy.hpp"

namespace hocket {

namespace {

// The receiver reads longer payloads while the sender writes them. The first and last pieces are small, so that the
// receiver starts early and has little to read at the end. The pieces between are larger, which costs less if the
// processors share no cache.
constexpr uint64_t kLeastPieceBytes = 4 << 10;
constexpr uint64_t kMostPieceBytes = 16 << 10;

// The end of a UTF-8 text, at most `most` bytes.
const char* last_bytes(const char* text, size_t most) {
  const size_t length = std::strlen(text);
  if (length <= most) return text;
  const char* begin = text + (length - most);
  while ((*begin & 0xC0) == 0x80) ++begin;  // inside a character
  return begin;
}

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
  copy_bytes(static_cast<std::byte*>(to), ring + begin, first);
  copy_bytes(static_cast<std::byte*>(to) + first, ring, nbytes - first);
}

}  // namespace

PointToPointLane::PointToPointLane(std::shared_ptr<Region> region, Channel channel)
    : region_(std::move(region)),
      channel_(channel),
      rank_(region_->rank),
      out_(static_cast<size_t>(region_->size)),
      in_(static_cast<size_t>(region_->size)) {}

PointToPointLane::Transfer& PointToPointLane::add(Transfers& transfers, const Operation& op) {
  if (spare_.empty()) spare_.emplace_back();
  transfers.splice(transfers.end(), spare_, spare_.begin());
  transfers.back() = Transfer{.op = op, .error = {}};
  return transfers.back();
}

void PointToPointLane::remove(Transfers& transfers, const Transfer* transfer) {
  const auto found =
      std::find_if(transfers.begin(), transfers.end(), [&](const Transfer& each) { return &each == transfer; });
  spare_.splice(spare_.begin(), transfers, found);
}

Progress PointToPointLane::post(Operation& op) {
  const int peer = op.root;
  if (op.kind == OpKind::send) {
    Outgoing& out = out_[peer];
    if (!out.is_open) open_pipe(peer, out);
    op.token = &add(out.transfers, op);
    return Progress::moved;
  }
  Incoming& in = in_[peer];
  Transfer& transfer = add(in.transfers, op);
  op.token = &transfer;
  const auto found = std::find_if(in.unexpected.begin(), in.unexpected.end(), [&](const Message& message) {
    return message.envelope.tag == op.tag && !message.receive;
  });
  if (found != in.unexpected.end()) hand_over(peer, in, transfer, found);
  return Progress::moved;
}

void PointToPointLane::hand_over(int peer, Incoming& in, Transfer& transfer, std::list<Message>::iterator message) {
  if (message->buffering && !message->buffering->done) {
    message->receive = &transfer;  // receive() hands the message over once it is complete
    transfer.in_ring_queue = false;
    return;
  }
  if (message->buffering) message->envelope.id = 0;  // its payload is buffered, as that of a short message
  const Message whole = std::move(*message);
  in.unexpected.erase(message);
  accept(peer, in, transfer, whole);
}

Progress PointToPointLane::test(Operation& op) {
  const int peer = op.root;
  auto* transfer = static_cast<Transfer*>(op.token);
  const bool left = region_->has_left(peer);  // read before the last drive, which then sees all that it published
  bool moved = op.kind == OpKind::send ? drive_out(peer) : drive_in(peer);
  if (op.kind == OpKind::send && is_stuck(*transfer))
    for (int other = 0; other < region_->size; ++other) moved |= buffer_unexpected(other);
  if (!transfer->done && !transfer->error) {
    if (left && !moved) {  // while data moves, more of its data may be left to read
      Error error = region_->gone_error({peer});
      error.message += hint(op);
      cancel(op);
      throw Failure(std::move(error));
    }
    return moved ? Progress::moved : Progress::waiting;
  }
  std::optional<Error> error = std::move(transfer->error);
  remove(op.kind == OpKind::send ? out_[peer].transfers : in_[peer].transfers, transfer);
  op.token = nullptr;
  if (error) throw Failure(std::move(*error));
  return Progress::done;
}

// Whether a send has waited so long for room or for a receive that all ranks may be sending to each other.
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

bool PointToPointLane::buffer_unexpected(int peer) {
  Incoming& in = in_[peer];
  bool moved = match_ring(peer, in, true);
  for (Message& message : in.unexpected) {
    if (!message.envelope.id || message.buffering) continue;
    message.payload.resize(message.envelope.nbytes);
    message.buffering = std::make_unique<Transfer>();
    message.buffering->op.nbytes = message.envelope.nbytes;
    message.buffering->op.out = message.payload.data();
    in.to_grant.push_back({message.envelope.id, message.buffering.get(), message.place});
    moved = true;
  }
  return receive(peer, in) || moved;
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

uint64_t PointToPointLane::bytes_in_ring(const Envelope& envelope) {
  const bool has_more = !envelope.id && envelope.nbytes > Head::kPayloadBytes;
  return kPrefixBytes + (has_more ? round_up(envelope.nbytes, kLineBytes) : 0);
}

PointToPointLane::Head& PointToPointLane::head_at(int sender, int receiver, uint64_t position) const {
  return *reinterpret_cast<Head*>(region_->ring_of(channel_, sender, receiver) + position % region_->ring_bytes);
}

void PointToPointLane::open_pipe(int peer, Outgoing& out) {
  region_->need_pipe(channel_, peer);
  // Clear it, because the memory may be reused.
  head_at(rank_, peer, kRingBegin).is_published.store(0, std::memory_order_relaxed);
  region_->control(channel_, rank_, peer).head.value.store(kRingBegin, std::memory_order_release);
  out.is_open = true;
}

bool PointToPointLane::enter_ring(int peer, Outgoing& out, Transfer& transfer) {
  PipeControl& control = region_->control(channel_, rank_, peer);
  const Operation& op = transfer.op;
  const bool is_long = op.nbytes > region_->ring_message_bytes;
  const Envelope envelope{op.nbytes, is_long ? out.last_id + 1 : 0, op.tag, op.dtype, op.is_of_object};
  const uint64_t end = out.head + bytes_in_ring(envelope);
  const auto has_room = [&] { return end + sizeof(Head) - out.tail <= region_->ring_bytes; };
  if (!has_room()) {
    out.tail = control.tail.value.load(std::memory_order_acquire);
    if (!has_room()) return false;
  }
  std::byte* ring = region_->ring_of(channel_, rank_, peer);
  Head& head = head_at(rank_, peer, out.head);
  const char* site = last_bytes(op.site ? op.site : "?", kSiteBytes - 1);
  head_at(rank_, peer, end).is_published.store(0, std::memory_order_relaxed);
  head.envelope = envelope;
  write_ring(writer_, ring, region_->ring_bytes, out.head + sizeof(Head), site, std::strlen(site) + 1);
  if (is_long) {
    if (!heap_ && region_->host().has_heap()) heap_ = region_->host().heap();
    const uint64_t place = heap_ ? heap_->place_of(op.in, op.nbytes).value_or(kNotShared) : kNotShared;
    std::memcpy(head.payload, &place, sizeof place);
    transfer.is_shared = place != kNotShared;
  }
  const uint64_t nbytes = is_long ? 0 : op.nbytes;
  const bool in_pieces = nbytes > kLeastPieceBytes;
  if (nbytes <= Head::kPayloadBytes)
    copy_bytes(head.payload, op.in, nbytes);
  else if (!in_pieces)
    write_ring(writer_, ring, region_->ring_bytes, out.head + kPrefixBytes, op.in, nbytes);
  head.is_published.store(1, std::memory_order_release);
  region_->ring_peer(peer);
  uint64_t longest = kLeastPieceBytes;
  for (uint64_t offset = 0; in_pieces && offset < nbytes; longest = std::min(4 * longest, kMostPieceBytes)) {
    const uint64_t left = nbytes - offset;
    const uint64_t piece = std::min({left, longest, std::max(left / 2, kLeastPieceBytes)});
    const uint64_t position = out.head + kPrefixBytes + offset;
    write_ring(writer_, ring, region_->ring_bytes, position, op.in + offset, piece);
    offset += piece;
    control.head.value.store(position + piece, std::memory_order_release);
    region_->ring_peer(peer);
  }
  out.head = end;
  out.last_id += is_long;
  transfer.in_ring_queue = false;
  transfer.id = envelope.id;
  transfer.done = !is_long;
  return true;
}

bool PointToPointLane::stream(int peer, Outgoing& out) {
  PipeControl& control = region_->control(channel_, rank_, peer);
  if (!out.streaming) {
    const uint64_t grant = control.granted.value.load(std::memory_order_acquire);
    if (grant == out.last_grant) return false;
    const uint64_t id = grant & ~(kRefused | kTaken);
    const auto found = std::find_if(out.transfers.begin(), out.transfers.end(),
                                    [&](const Transfer& transfer) { return transfer.id == id; });
    if (found == out.transfers.end()) return false;
    out.last_grant = grant;
    out.streaming = &*found;
    out.streaming->refused = grant & kRefused;
    out.streaming->is_taken = grant & kTaken;
  }
  Transfer& transfer = *out.streaming;
  bool moved = false;
  for (size_t slots = 0; slots < kMostSlots; ++slots) {
    if (out.produced - control.consumed.value.load(std::memory_order_acquire) == region_->num_bulk_slots) break;
    const uint64_t nbytes = std::min<uint64_t>(kBulkBytes, transfer.op.nbytes - transfer.position);
    // A message that is not streamed ends with one empty slot, so that the receiver knows that the grant was read.
    const bool flows = !transfer.refused && !transfer.is_taken;
    if (flows) {
      writer_.write(region_->bulk_slot(channel_, rank_, peer, out.produced), transfer.op.in + transfer.position,
                    nbytes);
      transfer.position += nbytes;
    }
    control.produced.value.store(++out.produced, std::memory_order_release);
    region_->ring_peer(peer);
    moved = true;
    if (transfer.refused)
      transfer.error = Error{ErrorCode::collective_mismatch,
                             "rank " + std::to_string(rank_) + ": " + describe(transfer.op) + " at " +
                                 (transfer.op.site ? transfer.op.site : "?") + "; rank " + std::to_string(peer) +
                                 " expected another size or type and raises an error too",
                             {peer}};
    if (!flows || transfer.position == transfer.op.nbytes) {
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

// Takes messages out of the ring while a posted receive has no message yet. Otherwise messages stay in the ring, and a
// full ring blocks the sender.
bool PointToPointLane::match_ring(int peer, Incoming& in, bool take_all) {
  if (!in.is_open) {
    in.is_open = region_->control(channel_, peer, rank_).head.value.load(std::memory_order_acquire) != 0;
    if (!in.is_open) return false;
  }
  bool moved = false;
  const uint64_t limit = in.tail + region_->ring_bytes;
  while (in.tail < limit) {
    if (in.reading) {
      if (!continue_reading(peer, in)) break;
      moved = true;
      continue;
    }
    const bool any_posted = take_all || std::any_of(in.transfers.begin(), in.transfers.end(),
                                                    [](const Transfer& transfer) { return transfer.in_ring_queue; });
    if (!any_posted) break;
    const Head& head = head_at(peer, rank_, in.tail);
    if (!head.is_published.load(std::memory_order_acquire)) break;
    const Envelope envelope = head.envelope;
    Transfer* const transfer = find_posted(in, envelope.tag);
    if (transfer && !envelope.id && fits(*transfer, envelope)) {
      transfer->in_ring_queue = false;
      in.reading = {envelope, transfer, 0};
      continue;
    }
    const uint64_t nbytes = envelope.id ? 0 : envelope.nbytes;
    if (num_readable(peer, in.tail, nbytes) < nbytes) break;
    uint64_t place = kNotShared;
    if (envelope.id) std::memcpy(&place, head.payload, sizeof place);
    Message message{envelope, place, site_at(peer, in.tail), std::vector<std::byte>(nbytes), nullptr, nullptr};
    read_payload(peer, in.tail, nbytes, 0, nbytes, message.payload.data());
    advance_past(peer, in, envelope);
    if (transfer)
      accept(peer, in, *transfer, message);
    else
      in.unexpected.push_back(std::move(message));
    moved = true;
  }
  return moved;
}

std::string PointToPointLane::site_at(int peer, uint64_t position) const {
  char site[kSiteBytes];
  read_ring(region_->ring_of(channel_, peer, rank_), region_->ring_bytes, position + sizeof(Head), site, sizeof site);
  return {site, strnlen(site, sizeof site)};
}

// How many bytes of the payload of the message at `position` can be read.
uint64_t PointToPointLane::num_readable(int peer, uint64_t position, uint64_t nbytes) const {
  if (nbytes <= kLeastPieceBytes) return nbytes;
  const uint64_t filled = region_->control(channel_, peer, rank_).head.value.load(std::memory_order_acquire);
  return filled <= position + kPrefixBytes ? 0 : std::min(nbytes, filled - position - kPrefixBytes);
}

// Reads bytes [begin, end) of a payload.
void PointToPointLane::read_payload(int peer, uint64_t position, uint64_t nbytes, uint64_t begin, uint64_t end,
                                    std::byte* to) const {
  if (nbytes <= Head::kPayloadBytes)
    copy_bytes(to, head_at(peer, rank_, position).payload, nbytes);
  else
    read_ring(region_->ring_of(channel_, peer, rank_), region_->ring_bytes, position + kPrefixBytes + begin, to,
              end - begin);
}

bool PointToPointLane::continue_reading(int peer, Incoming& in) {
  auto& [envelope, transfer, position] = *in.reading;
  const uint64_t end = num_readable(peer, in.tail, envelope.nbytes);
  if (end == position && end < envelope.nbytes) return false;
  if (transfer) read_payload(peer, in.tail, envelope.nbytes, position, end, transfer->op.out + position);
  position = end;
  if (end < envelope.nbytes) return true;
  if (transfer) transfer->done = true;
  advance_past(peer, in, envelope);
  in.reading.reset();
  return true;
}

void PointToPointLane::advance_past(int peer, Incoming& in, const Envelope& envelope) {
  in.tail += bytes_in_ring(envelope);
  region_->control(channel_, peer, rank_).tail.value.store(in.tail, std::memory_order_release);
  region_->ring_peer(peer);
}

bool PointToPointLane::fits(const Transfer& transfer, const Envelope& envelope) {
  return envelope.nbytes == transfer.op.nbytes && envelope.dtype == transfer.op.dtype &&
         envelope.is_of_object == transfer.op.is_of_object;
}

void PointToPointLane::accept(int peer, Incoming& in, Transfer& transfer, const Message& message) {
  const Envelope& envelope = message.envelope;
  transfer.in_ring_queue = false;
  const bool is_good = fits(transfer, envelope);
  if (!is_good) transfer.error = mismatch(peer, transfer, message);
  if (envelope.id) {
    in.to_grant.push_back({envelope.id, is_good ? &transfer : nullptr, message.place});
  } else if (is_good) {
    copy_bytes(transfer.op.out, message.payload.data(), envelope.nbytes);
    transfer.done = true;
  }
}

Heap* PointToPointLane::heap() {
  if (!heap_ && !cannot_map_) {
    try {
      heap_ = region_->host().heap();
    } catch (const Failure&) {
      cannot_map_ = true;  // messages are streamed instead
    }
  }
  return heap_.get();
}

// Continues to read a message out of its sender's array; true once it is complete.
bool PointToPointLane::read_shared(int peer, const Incoming::Grant& grant, size_t& slots) const {
  Transfer& transfer = *grant.transfer;
  const std::byte* const from = heap_->at(region_->host_rank(peer), grant.place);
  while (transfer.position < transfer.op.nbytes && slots++ < kMostSlots) {
    const uint64_t nbytes = std::min<uint64_t>(kBulkBytes, transfer.op.nbytes - transfer.position);
    copy_into_array(transfer.op.out + transfer.position, from + transfer.position, nbytes, transfer.op.nbytes);
    transfer.position += nbytes;
  }
  return transfer.position == transfer.op.nbytes;
}

void PointToPointLane::complete(int peer, Incoming& in, Transfer& transfer) {
  transfer.done = true;
  const auto taken = std::find_if(in.unexpected.begin(), in.unexpected.end(),
                                  [&](const Message& message) { return message.buffering.get() == &transfer; });
  if (taken != in.unexpected.end() && taken->receive) hand_over(peer, in, *taken->receive, taken);
}

bool PointToPointLane::receive(int peer, Incoming& in) {
  PipeControl& control = region_->control(channel_, peer, rank_);
  bool moved = false;
  size_t slots = 0;
  while (!in.to_grant.empty()) {
    Incoming::Grant& grant = in.to_grant.front();
    if (!in.granted) {
      moved = true;
      const bool is_shared = grant.transfer && grant.place != kNotShared && heap();
      if (is_shared && !read_shared(peer, grant, slots)) break;
      const uint64_t how = !grant.transfer ? kRefused : is_shared ? kTaken : 0;
      control.granted.value.store(grant.id | how, std::memory_order_release);
      region_->ring_peer(peer);
      in.granted = true;
      if (is_shared) complete(peer, in, *std::exchange(grant.transfer, nullptr));
    }
    Transfer* const transfer = grant.transfer;
    bool is_over = false;
    while (!is_over && slots < kMostSlots && control.produced.value.load(std::memory_order_acquire) > in.consumed) {
      ++slots;
      if (transfer) {
        const uint64_t nbytes = std::min<uint64_t>(kBulkBytes, transfer->op.nbytes - transfer->position);
        copy_into_array(transfer->op.out + transfer->position, region_->bulk_slot(channel_, peer, rank_, in.consumed),
                        nbytes, transfer->op.nbytes);
        transfer->position += nbytes;
      }
      control.consumed.value.store(++in.consumed, std::memory_order_release);
      region_->ring_peer(peer);
      moved = true;
      is_over = !transfer || transfer->position == transfer->op.nbytes;
    }
    if (!is_over) break;
    in.to_grant.pop_front();
    in.granted = false;
    if (transfer) complete(peer, in, *transfer);
  }
  return moved;
}

Error PointToPointLane::mismatch(int peer, const Transfer& transfer, const Message& message) const {
  return {ErrorCode::collective_mismatch,
          "rank " + std::to_string(rank_) + ": " + describe(transfer.op) + " at " +
              (transfer.op.site ? transfer.op.site : "?") + "; rank " + std::to_string(peer) + " sent " +
              content_text(message.envelope.nbytes, message.envelope.dtype, message.envelope.is_of_object) + " at " +
              message.site,
          {peer}};
}

bool PointToPointLane::cancel(Operation& op) noexcept {
  auto* transfer = static_cast<Transfer*>(op.token);
  const bool unnoticed = transfer->in_ring_queue;
  if (op.kind == OpKind::send && out_[op.root].streaming == transfer) out_[op.root].streaming = nullptr;
  // The receiver may still read the array and must see the content that was sent.
  if (transfer->is_shared && !transfer->in_ring_queue && !transfer->done) heap_->detach(op.in);
  if (op.kind == OpKind::recv) {
    std::erase_if(in_[op.root].to_grant, [&](const auto& grant) { return grant.transfer == transfer; });
    for (Message& message : in_[op.root].unexpected)
      if (message.receive == transfer) message.receive = nullptr;
    std::optional<Incoming::Reading>& reading = in_[op.root].reading;
    if (reading && reading->transfer == transfer) reading->transfer = nullptr;
  }
  remove(op.kind == OpKind::send ? out_[op.root].transfers : in_[op.root].transfers, transfer);
  op.token = nullptr;
  return unnoticed;
}

}  // namespace hocket
