// Messages of frames between two processes, over a stream socket; one event loop drives one end.
//
// Large frames do not go through the socket, if there is another way:
//  - in a segment of shared memory (segment.hpp), which the sender writes and the receiver reads in place;
//  - by a carrier (carrier.hpp), when the peer has said that it is ready;
//  - lent, if the peer may read this process's memory: the message has their address, and the peer copies them and says
//    so (`taken`). Until then they are kept.
//
// Frames in device memory are lent, too, but their reader copies them (device_loan.hpp), after `take`.
//
// A frame that was copied is only believed if the peer had not closed the stream before the copy ended. An end closes
// its stream before it frees what it has lent, and the kernel tells that to the other end at once; so what was copied
// while the stream was open is what was lent.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "frames/background.hpp"
#include "frames/carrier.hpp"
#include "frames/copy.hpp"
#include "frames/incoming.hpp"
#include "frames/outgoing.hpp"
#include "frames/segment.hpp"

namespace hocket {

struct FrameStreamOptions {
  int fd;                                 // non-blocking; not owned
  bool is_local;                          // a local socket, over which segments can be shared
  int lender;                             // the peer's process, whose memory may be read; 0: it lends nothing
  bool lends;                             // whether the peer may read this process's memory
  std::shared_ptr<FrameCarrier> carrier;  // null: none
  bool takes_loans;                       // of frames in the peer's device memory
  uint64_t large_nbytes;                  // frames of this size do not go through the socket, if there is another way
  uint64_t most_nbytes;                   // of a message that comes
  uint64_t high_water;                    // bytes that are copied ahead of the reader
  std::shared_ptr<LoopWaker> waker;
  uint64_t number;  // of this stream, for the waker
};

struct FrameStreamCounts {
  uint64_t num_sent = 0, nbytes_sent = 0;          // messages, and bytes of their frames
  uint64_t nbytes_lent = 0, nbytes_shared = 0;     // of these, those that were lent, and those in segments
  uint64_t num_received = 0, nbytes_received = 0;  // the same of what has come
  uint64_t nbytes_borrowed = 0, nbytes_mapped = 0;
  uint64_t nbytes_carried_out = 0, nbytes_carried_in = 0;  // by a carrier
  uint64_t nbytes_device_out = 0, nbytes_device_in = 0;    // in device memory
};

class FrameStream {
 public:
  explicit FrameStream(FrameStreamOptions options);
  ~FrameStream() { end(); }
  FrameStream(const FrameStream&) = delete;
  FrameStream& operator=(const FrameStream&) = delete;

  // Queues a message, and sends what the socket takes at once. Throws Failure if the peer has closed the stream.
  void send(std::vector<SentBytes> frames);
  // Sends what the socket takes, and what is owed to the peer.
  void flush();
  // Bytes of messages that wait: for the socket, for a copy, or until the peer has taken them.
  uint64_t waiting_nbytes() const { return outgoing_.nbytes() + prepared_nbytes_ + lent_now_; }
  bool has_unsent() const { return outgoing_.nbytes() > 0; }

  // Reads what has come. False if the peer has closed the stream.
  bool receive();
  // Looks for so long whether something has come, without sleeping; may run beside other threads of the program.
  bool spin(int64_t spin_ns) const;
  // Goes on after a copy in a thread has ended, or the reader has taken a message.
  void collect();
  bool has_message() const { return num_whole_ > 0; }
  // Whether the reader is so far behind that nothing more should be read.
  bool is_full() const { return unread_ > options_.high_water; }
  // The next message, if it is here as a whole; `collect` takes over those behind it.
  std::optional<std::vector<ReceivedFrame>> take();
  // Whether the message that was taken last has frames in the peer's device memory: no other is given out before
  // `end_loans`, which the reader calls once it has copied them. Throws Failure if the peer has closed the stream: then
  // what was copied may be anything.
  bool has_loans() const { return has_loans_; }
  void end_loans();
  // Of the message that was taken last: ticks() when it was here as a whole, and bytes of its frames.
  uint64_t taken_since() const { return taken_since_; }
  uint64_t taken_nbytes() const { return taken_nbytes_; }
  // Copies whatever is lent, however much has been copied ahead of the reader: for an end that waits for its peer,
  // which may wait for this one.
  void pull_all();

  // Whether the peer is to be told of messages that were copied, or of segments that it may use again. The next message
  // or `flush` does so.
  bool owes_receipt() const { return num_taken_ > num_told_ || incoming_.segments().has_returns(); }

  // Drops segments that were not used since a time of now_ns(). Throws Failure if the socket fails.
  void trim(int64_t since_ns);
  bool has_segments() const { return segments_.has_any(); }

  // Waits until no background thread reads what is to be sent; milliseconds. Needs no lock of Python.
  void wait_for_copies() const;
  // Frees what was to be sent, and copies nothing any more: of what has come only messages that are here as a whole are
  // left. The socket must be closed before: see above.
  void end();

  const FrameStreamCounts& counts() const { return counts_; }

 private:
  // A message whose frames are being copied into segments, or one that waits for such a one before it.
  struct Prepared {
    std::vector<SentBytes> parts;
    std::shared_ptr<FrameCopy> copy;
    std::vector<SentBytes> sources;  // of the copy
    uint64_t nbytes;
  };
  struct Lent {
    std::vector<SentBytes> frames;
    uint64_t nbytes;  // of these, and of frames in segments
    bool is_carried;
    bool is_device;                      // whether some are in device memory
    std::shared_ptr<Carriage> carriage;  // set once the peer is ready
  };
  struct Arrived {
    ReceivedRecord record;
    std::shared_ptr<FrameCopy> copy;     // of its lent frames, if it has begun
    std::shared_ptr<Carriage> carriage;  // of its carried frames, if it has begun
    bool is_whole;
    uint64_t nbytes;     // of its frames
    uint64_t since = 0;  // ticks() when the reader could have taken it

    bool needs_peer() const { return record.lent_nbytes + record.carried_nbytes + record.num_loans > 0; }
    bool is_pulled() const { return copy ? copy->has_ended() : carriage->has_ended(); }
  };

  bool receive_records();
  void send_prepared();
  void take_receipt(uint64_t count);
  void take_ready(uint64_t count);
  void drop_lent(Lent lent);
  static void keep_until_sent(std::vector<Lent> left);
  void add_receipt();
  void add_dropped();
  void add_header(const RecordHeader& header);
  void pull_next();
  void begin_pull(Arrived& message);
  void begin_carriage(Arrived& message);
  void end_pull(Arrived& message);
  std::function<void()> wakes() const;
  void count_whole();
  bool waits_for_reader() const;
  bool is_closed_by_peer() const;

  FrameStreamOptions options_;
  mutable IncomingRecords incoming_;
  OutgoingBytes outgoing_;
  std::shared_ptr<LoopWaker> waker_;
  OwnSegments segments_;
  std::deque<Prepared> prepared_;
  uint64_t prepared_nbytes_ = 0;
  std::deque<Lent> lent_;  // messages with frames outside of the stream that the peer has not taken yet
  uint64_t lent_now_ = 0, num_lent_ = 0, num_returned_ = 0, num_ready_ = 0;
  std::vector<Lent> finishing_;  // the peer has these already, but the carrier has not said that they are sent
  std::deque<Arrived> arrived_;
  size_t next_pull_ = 0;     // the first of them whose copy has not begun
  size_t num_whole_ = 0;     // of them, from the first one on, that are here as a whole
  uint64_t ahead_ = 0;       // bytes outside of the stream that were taken over, and not read
  uint64_t unread_ = 0;      // bytes from the stream
  uint64_t num_taken_ = 0;   // messages with frames outside of the stream, taken over
  uint64_t num_told_ = 0;    // of these, those that the peer knows of
  uint64_t num_pulled_ = 0;  // messages with frames outside of the stream that this end has begun to take over
  bool pulls_all_ = false;
  bool has_loans_ = false;
  bool has_ended_ = false;
  const pid_t process_ = getpid();  // a forked child has no threads that would end a copy
  std::vector<ReceivedRecord> records_;
  uint64_t taken_since_ = 0, taken_nbytes_ = 0;
  FrameStreamCounts counts_;
};

}  // namespace hocket
