// Messages between two ranks: matched by (sender, tag) in the order of issue, as in MPI.
//
// Each direction of a pair of ranks has one pipe: a byte ring and a few bulk slots.
//  - Short message (eager): its payload travels through the ring; the receiver reads it while the sender still writes.
//    Of a very short message, the receiver reads a single cache line.
//  - Long message (rendezvous): only its announcement travels through the ring. Once a receive matches it, the receiver
//    grants its id, and the sender streams the payload through the bulk slots, one long message at a time. If the
//    sender's array is in the host's heap, the announcement has its place, and the receiver reads it there before it
//    grants the id.
//  - Ranks that all send first would wait for each other's receives for ever. So a rank whose send is stuck buffers the
//    messages that others sent to it in its own memory, as unexpected messages (rule R7).
//  - A message whose size or type differs from its receive is consumed too: the receiver raises CollectiveMismatch, and
//    so does the sender if it still waits.
//
//   sender:    queued -> (in the ring: done, if short) -> announced -> (streaming) -> done
//   receiver:  posted -> (copied from the ring: done, if short) -> matched -> receiving -> done
//
// Ownership of transfers:
//
//   Outgoing::transfers                own the transfers of posted operations, until test() or cancel();
//   Incoming::transfers                Operation::token, Outgoing::streaming and Incoming::reading borrow them
//   Incoming::unexpected               owns messages that came before their receive; each Message:
//     Message::buffering               owns a transfer without operation, into Message::payload (buffer_unexpected)
//     Message::receive                 borrows, from Incoming::transfers, the receive that gets the payload
//   Incoming::to_grant                 borrows from either; long messages are received one at a time, in this order
//
//   receive posted before:             transfers <--- to_grant ---> done
//   no receive posted, and a send      unexpected: Message.buffering <--- to_grant ---> buffered
//   of this rank is stuck (or probe):              Message.receive ---> transfers: hand_over() copies ---> done
//
// Three rules keep borrowed transfers alive:
//  - A message leaves `unexpected` only if its buffering is done, and thus no longer in to_grant (hand_over).
//  - A grant is removed from to_grant before its transfer is completed (receive).
//  - cancel() removes its transfer from every place that borrows it.
#pragma once

#include <atomic>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/lane.hpp"
#include "core/shared_writer.hpp"
#include "shm/region.hpp"

namespace hocket {

// Bulk slots that one call moves at most, so that a fast peer does not hold up other lanes.
inline constexpr size_t kMostSlots = 32;

class PointToPointLane final : public Lane {
 public:
  explicit PointToPointLane(std::shared_ptr<Region> region, Channel channel = Channel::messages);

  const char* backend() const override { return "shm"; }
  size_t depth() const override {
    return SIZE_MAX;
  }  // operations to different peers or tags do not wait for each other
  Progress post(Operation& op) override;
  Progress test(Operation& op) override;
  std::vector<int> missing(const Operation& op) const override { return {op.root}; }
  std::string hint(const Operation& op) override;
  bool cancel(Operation& op) noexcept override;
  std::optional<int> find_sender(int tag) override;
  std::string unreceived() override;
  bool is_short(const Operation& op) const override { return op.nbytes <= region_->ring_message_bytes; }
  std::optional<Error> health() override { return region_->check_peers(); }
  void abandon(const Error& error) noexcept override { region_->post_abort(error); }

 private:
  struct Envelope {
    uint64_t nbytes;
    uint64_t id;  // of a long message, counted per direction from 1; 0: short, the payload follows
    int32_t tag;
    DType dtype;
    bool is_of_object;
  };
  // A message in the ring: this line, its call site as text, and the payload if this line cannot hold it.
  struct alignas(kLineBytes) Head {
    static constexpr size_t kPayloadBytes = 32;
    Envelope envelope;
    std::byte payload[kPayloadBytes];
    std::atomic<uint64_t> is_published;  // flag; the sender clears it before it publishes the previous message
  };
  static_assert(sizeof(Head) == 64);
  static constexpr uint64_t kNotShared = UINT64_MAX;
  static constexpr size_t kSiteBytes = 128;  // read only if no receive takes the message at once
  static constexpr uint64_t kPrefixBytes = sizeof(Head) + kSiteBytes;
  static constexpr uint64_t kRingBegin = 64;  // not zero: head == 0 means that the sender has not opened the pipe

  struct Transfer {
    Operation op;
    uint64_t id = 0;             // of a long message
    uint64_t position = 0;       // bytes already streamed
    int64_t stuck_since_ns = 0;  // of a send: when is_stuck() first found it at stuck_position
    uint64_t stuck_position = 0;
    bool in_ring_queue = true;
    bool is_shared = false;  // the receiver may read the array
    bool refused = false;
    bool is_taken = false;
    bool done = false;
    std::optional<Error> error;
  };
  using Transfers = std::list<Transfer>;  // the lane reuses its nodes (spare_)

  struct Outgoing {
    Transfers transfers;
    uint64_t head = kRingBegin;
    uint64_t tail = kRingBegin;  // last value read from the receiver
    bool is_open = false;
    uint64_t produced = 0;
    uint64_t last_id = 0;
    uint64_t last_grant = 0;
    Transfer* streaming = nullptr;
  };
  struct Message {  // came before its receive; it left the ring because later messages may have a receive
    Envelope envelope;
    uint64_t place;  // of a long message's array in its sender's part of the heap, or kNotShared
    std::string site;
    std::vector<std::byte> payload;
    std::unique_ptr<Transfer> buffering;  // of a long message, into `payload`
    Transfer* receive = nullptr;          // the matching receive, once posted
  };
  struct Incoming {
    Transfers transfers;
    std::list<Message> unexpected;
    struct Grant {
      uint64_t id;
      Transfer* transfer;  // null: no payload is streamed; the sender answers with an empty slot
      uint64_t place;
    };
    std::deque<Grant> to_grant;
    struct Reading {
      Envelope envelope;
      Transfer* transfer;  // null: it was cancelled
      uint64_t position;
    };
    std::optional<Reading> reading;  // the first message of the ring, which may be written only in part
    uint64_t tail = kRingBegin;
    bool is_open = false;
    uint64_t consumed = 0;
    bool granted = false;  // whether the first of to_grant is granted
  };

  Transfer& add(Transfers& transfers, const Operation& op);
  void remove(Transfers& transfers, const Transfer* transfer);
  static uint64_t bytes_in_ring(const Envelope& envelope);
  Head& head_at(int sender, int receiver, uint64_t position) const;
  std::string site_at(int peer, uint64_t position) const;
  void open_pipe(int peer, Outgoing& out);
  bool drive_out(int peer);
  bool enter_ring(int peer, Outgoing& out, Transfer& transfer);
  bool stream(int peer, Outgoing& out);
  bool drive_in(int peer);
  bool match_ring(int peer, Incoming& in, bool take_all = false);
  uint64_t num_readable(int peer, uint64_t position, uint64_t nbytes) const;
  void read_payload(int peer, uint64_t position, uint64_t nbytes, uint64_t begin, uint64_t end, std::byte* to) const;
  bool continue_reading(int peer, Incoming& in);
  void advance_past(int peer, Incoming& in, const Envelope& envelope);
  bool is_stuck(Transfer& transfer) const;
  bool buffer_unexpected(int peer);
  void hand_over(int peer, Incoming& in, Transfer& transfer, std::list<Message>::iterator message);
  void complete(int peer, Incoming& in, Transfer& transfer);
  bool receive(int peer, Incoming& in);
  bool read_shared(int peer, const Incoming::Grant& grant, size_t& slots) const;
  Heap* heap();
  Transfer* find_posted(Incoming& in, int tag);
  static bool fits(const Transfer& transfer, const Envelope& envelope);
  void accept(int peer, Incoming& in, Transfer& transfer, const Message& message);
  Error mismatch(int peer, const Transfer& transfer, const Message& message) const;

  std::shared_ptr<Region> region_;
  const Channel channel_;
  const int rank_;
  int last_found_ = 0;  // by find_sender, which starts with the next rank
  Transfers spare_;
  std::shared_ptr<Heap> heap_;
  bool cannot_map_ = false;
  SharedWriter writer_;
  std::vector<Outgoing> out_;
  std::vector<Incoming> in_;
};

}  // namespace hocket
