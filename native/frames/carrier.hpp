// Carries large frames between hosts over a library that both processes have started (MPI, UCX), beside the stream of
// their connection.
//
// A thread of its own posts and tests the operations, so that no event loop polls; it sleeps while nothing is in
// flight. A frame is sent only after the receiver has said over the stream that it has posted the receive: the library
// never keeps messages that nobody expects, and both ends know what is in flight when the connection ends.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/lane.hpp"
#include "frames/block.hpp"

namespace hocket {

struct CarriedBytes {
  const std::byte* from;  // of what is sent; null: this end receives
  std::byte* to;
  uint64_t nbytes;
};

// One message's frames on their way, in one direction.
class Carriage {
 public:
  // Acquires the bytes that were received.
  bool has_ended() const { return has_ended_.load(std::memory_order_acquire); }
  // Whether the library reads what is sent no more, for certain.
  bool is_free() const { return has_ended() && !may_be_read_; }
  // Why it failed; "": it has not.
  std::string error() const;
  // The connection has ended: nobody waits for it any more. Its memory must stay until it has ended.
  void abandon() { is_abandoned_.store(true, std::memory_order_relaxed); }

 private:
  friend class CarrierThread;
  friend class FrameCarrier;

  struct Part {
    Operation operation;
    enum class State : uint8_t { waiting, posted, over } state = State::waiting;
  };

  std::shared_ptr<Lane> lane_;
  std::vector<Part> parts_;                          // used by the thread only, as what follows
  std::vector<std::shared_ptr<FrameBlock>> blocks_;  // that receive
  std::function<void()> at_end_;
  size_t num_over_ = 0;
  std::optional<int64_t> abandoned_ns_;
  std::atomic<bool> is_abandoned_{false};  // relaxed: the thread may see it late
  std::atomic<bool> has_ended_{false};     // release after what follows, and the bytes, are written
  bool may_be_read_ = false;               // it was given up, and the library may still read
  std::string error_;
};

// What one connection sends and receives over a lane.
class FrameCarrier {
 public:
  // peer: the peer's rank in the lane. Messages to it have the tag tag_out, those from it tag_in; nobody else uses
  // these tags.
  FrameCarrier(std::shared_ptr<Lane> lane, int peer, int tag_out, int tag_in)
      : lane_(std::move(lane)), peer_(peer), tag_out_(tag_out), tag_in_(tag_in) {}

  // Begin to send, or to receive; frames arrive in the order in which they are sent. What is sent must stay until the
  // carriage has ended; blocks are kept by it. The thread calls at_end, which must not throw.
  std::shared_ptr<Carriage> send(const std::vector<CarriedBytes>& frames, std::function<void()> at_end);
  std::shared_ptr<Carriage> receive(const std::vector<CarriedBytes>& frames,
                                    std::vector<std::shared_ptr<FrameBlock>> blocks, std::function<void()> at_end);

  // The peer has not told yet that it has everything: until then this process drives the library.
  void expect_receipt();
  void note_receipts(uint64_t count);

  static constexpr size_t kProbeBytes = 16;
  using ProbeBytes = std::array<std::byte, kProbeBytes>;
  // Exchange some bytes with the peer, to see that the library connects the two.
  void begin_probe(const ProbeBytes& sent);
  // What has come; nothing while it has not come.
  std::optional<ProbeBytes> probe_found() const;
  // The peer will send no bytes.
  void abandon_probe();

  // Ends all work of this process, waits at most timeout_ns for what is in flight; then no library is called any more.
  static void stop_all(int64_t timeout_ns);

 private:
  std::shared_ptr<Carriage> begin(OpKind kind, const std::vector<CarriedBytes>& frames,
                                  std::vector<std::shared_ptr<FrameBlock>> blocks, std::function<void()> at_end);

  const std::shared_ptr<Lane> lane_;
  const int peer_, tag_out_, tag_in_;
  std::shared_ptr<FrameBlock> probe_sent_, probe_received_;
  std::shared_ptr<Carriage> probe_out_, probe_in_;
};

}  // namespace hocket
