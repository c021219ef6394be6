// Messages between two ranks: matched by (sender, tag) in the order of issue, as in MPI.
//
// Per direction of a pair there is one byte ring and a few bulk slots. A short message travels through the ring, where
// the receiver reads it while it is still being written; of a very short one it has to read a single line. Of a long
// one only the announcement does; once a receive matches it, the receiver grants its id, and the sender streams it
// through the bulk slots, one long message at a time. Where the sender's array lies in the host's heap, the
// announcement says where, and the receiver reads it there before it grants the id. Ranks that all send first would
// wait for each other's receives for ever: a rank whose send is stuck takes in what others sent, into memory of its own
// (rule R7). A message whose size or type differs from what the receive expects is taken out all the same: the receiver
// raises CollectiveMismatch, and so does the sender if it still waits.
//
//   sender:    queued -> (in the ring: done, if short) -> announced -> (streaming) -> done
//   receiver:  posted -> (copied from the ring: done, if short) -> matched -> receiving -> done
//
// Who owns transfers, and who borrows them:
//
//   Outgoing::transfers                own those of posted operations, until test() or cancel(); Operation::token,
//   Incoming::transfers                Outgoing::streaming and Incoming::reading borrow them
//   Incoming::unexpected               owns messages that came before their receive, and each Message
//     Message::taking_in               owns a transfer of no operation, into Message::payload, once the sender is stuck
//     Message::receive                 borrows, from Incoming::transfers, the receive that gets the payload
//   Incoming::to_grant                 borrows from either: one long message after the other flows, in this order
//
//   a receive was posted before:       transfers <--- to_grant ---> done
//   nobody has posted one, and the     unexpected: Message.taking_in <--- to_grant ---> here
//   sender is stuck (take_in):                     Message.receive ---> transfers: hand_over() copies ---> done
//
// Three rules keep borrowed ones alive: a message leaves `unexpected` only where its taking_in is not in to_grant, as
// it was done before (hand_over); a grant is taken out of to_grant before its transfer is completed (receive); cancel()
// takes its transfer out of every place that borrows it.
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

// Bulk slots that are moved in one call: a peer that keeps pace must not hold up other lanes.
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
  std::optional<Error> health() override { return region_->look_at_peers(); }
  void abandon(const Error& error) noexcept override { region_->post_abort(error); }

 private:
  struct Envelope {
    uint64_t nbytes;
    uint64_t id;  // of a long message, counted per sender and receiver from 1; 0: short, the payload follows
    int32_t tag;
    DType dtype;
    bool is_of_object;
  };
  // A message in the ring: this line, its call site as text, and what of the payload this line does not hold.
  struct alignas(kLineBytes) Head {
    static constexpr size_t kPayloadBytes = 32;
    Envelope envelope;
    std::byte payload[kPayloadBytes];
    std::atomic<uint64_t> is_there;  // the sender makes it zero before the message in front of it is there
  };
  static_assert(sizeof(Head) == 64);
  static constexpr uint64_t kNotShared = UINT64_MAX;
  static constexpr size_t kSiteBytes = 128;  // read only where a receive does not take the message at once
  static constexpr uint64_t kPrefixBytes = sizeof(Head) + kSiteBytes;
  static constexpr uint64_t kRingBegin = 64;  // not zero, which is the head of a pipe that the sender has not made yet

  struct Transfer {
    Operation op;
    uint64_t id = 0;             // of a long message
    uint64_t position = 0;       // bytes already streamed
    int64_t stuck_since_ns = 0;  // of a send: when it was seen at this position first
    uint64_t stuck_position = 0;
    bool in_ring_queue = true;
    bool is_shared = false;  // the receiver may read the array
    bool refused = false;
    bool is_taken = false;
    bool done = false;
    std::optional<Error> error;
  };
  using Transfers = std::list<Transfer>;  // of which the lane keeps the nodes

  struct Outgoing {
    Transfers transfers;
    uint64_t head = kRingBegin;
    uint64_t tail = kRingBegin;  // as it was seen last
    bool is_open = false;
    uint64_t produced = 0;
    uint64_t last_id = 0;
    uint64_t last_grant = 0;
    Transfer* streaming = nullptr;
  };
  struct Message {  // one that came before its receive, and behind which another receive's message may be
    Envelope envelope;
    uint64_t place;  // of a long one in its sender's part of the heap, or kNotShared
    std::string site;
    std::vector<std::byte> payload;
    std::unique_ptr<Transfer> taking_in;  // of a long message that is taken into `payload`
    Transfer* receive = nullptr;          // that it belongs to, once there is one
  };
  struct Incoming {
    Transfers transfers;
    std::list<Message> unexpected;
    struct Grant {
      uint64_t id;
      Transfer* transfer;  // null: nothing flows; the sender answers with an empty slot
      uint64_t place;
    };
    std::deque<Grant> to_grant;
    struct Reading {
      Envelope envelope;
      Transfer* transfer;  // null: it was cancelled
      uint64_t position;
    };
    std::optional<Reading> reading;  // the first message of the ring, which may be there in part
    uint64_t tail = kRingBegin;
    bool is_open = false;
    uint64_t consumed = 0;
    bool granted = false;  // the first of to_grant
  };

  Transfer& add(Transfers& transfers, const Operation& op);
  void take_out(Transfers& transfers, const Transfer* transfer);
  static uint64_t bytes_in_ring(const Envelope& envelope);
  Head& head_at(int sender, int receiver, uint64_t position) const;
  std::string site_at(int peer, uint64_t position) const;
  void open_pipe(int peer, Outgoing& out);
  bool drive_out(int peer);
  bool enter_ring(int peer, Outgoing& out, Transfer& transfer);
  bool stream(int peer, Outgoing& out);
  bool drive_in(int peer);
  bool match_ring(int peer, Incoming& in, bool take_all = false);
  uint64_t num_there(int peer, uint64_t position, uint64_t nbytes) const;
  void read_payload(int peer, uint64_t position, uint64_t nbytes, uint64_t begin, uint64_t end, std::byte* to) const;
  bool read_on(int peer, Incoming& in);
  void go_past(int peer, Incoming& in, const Envelope& envelope);
  bool is_stuck(Transfer& transfer) const;
  bool take_in(int peer);
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
  int last_found_ = 0;  // by find_sender: whoever is next to it is asked first
  Transfers spare_;
  std::shared_ptr<Heap> heap_;
  bool cannot_map_ = false;
  SharedWriter writer_;
  std::vector<Outgoing> out_;
  std::vector<Incoming> in_;
};

}  // namespace hocket
