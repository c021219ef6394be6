// Executes a schedule on one rank, over the messages of a lane. Sends and receives are posted, several at a time, as
// soon as their dependencies are done. A received block is reduced while the next one arrives and the previous one is
// sent.
//
// Proof that no schedule deadlocks: sends are posted in the order of their rounds, and so are receives; a lane delivers
// messages between two ranks in that order. Take, of all unfinished messages, one of the earliest round.
//  - Its content was written in earlier rounds, so it is available.
//  - No message in front of it belongs to an earlier round, and those of its own round wait for no later message: a
//    receive that would have to wait for a send of its own round uses a buffer.
// So the message is posted on both ranks, and completes.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/lane.hpp"
#include "core/transfer_log.hpp"
#include "reduce/reduce.hpp"
#include "schedule/slots.hpp"

namespace hocket {

class Executor {
 public:
  // tag: of its messages; no other messages on that lane use it.
  Executor(std::unique_ptr<Lane> messages, int rank, int size, int tag)
      : messages_(std::move(messages)), rank_(rank), size_(size), tag_(tag) {}

  // Starts an operation with a program; copies `op`.
  void start(const Operation& op);
  bool is_running() const { return slots_.has_value(); }
  // Rethrows the error of a message; this ends the run and cancels the messages in flight.
  Progress drive();
  std::vector<int> missing() const;
  void cancel() noexcept;
  // Bytes sent in the latest run.
  uint64_t sent_nbytes() const { return sent_nbytes_; }
  Lane& messages() { return *messages_; }
  bool takes_memory(const Operation& op) const { return messages_->takes_memory(op); }
  Polling polling() const { return messages_->polling(); }

 private:
  struct Buffer {
    std::unique_ptr<std::byte[]> memory;
    uint64_t nbytes = 0;
  };
  // A message in flight, or a received message that waits in a buffer until it may be written to its slot.
  struct Flight {
    uint32_t step;
    Operation op;
    std::optional<Buffer> buffer;
    Transfer transfer = {};
    bool has_arrived = false;
  };
  using Flights = std::deque<Flight>;

  std::span<const Segment> segments_of(const Step& step) const {
    return {program_->segments.data() + step.first_segment, step.num_segments};
  }
  bool may_run(const Step& step) const;
  uint64_t nbytes_of(const Step& step) const;
  uint64_t moved_nbytes(const Step& move) const;
  int peer_of(const Step& step) const { return op_.program->rank_at(step.peer, root_); }
  bool test(Flights& flights);
  bool write_arrived();
  bool post_sends();
  bool post_receives();
  bool make_moves();
  void post(Flights& flights, uint32_t number, OpKind kind, std::byte* memory, std::optional<Buffer> buffer,
            uint64_t nbytes);
  void pack(uint32_t number, std::byte* to, uint64_t nbytes);
  void write(uint32_t number, const std::byte* from, uint64_t nbytes);
  void write_segment(const Segment& segment, const std::byte* from, bool is_from_lower);
  // The begin of a message's segments if they are contiguous in memory, else null.
  const std::byte* contiguous(const Step& step) const;
  void set_done(uint32_t step);
  void finish();
  Buffer take_buffer(uint64_t nbytes);
  void return_buffer(std::optional<Buffer>& buffer);

  const std::unique_ptr<Lane> messages_;
  const int rank_;
  const int size_;
  const int tag_;

  Operation op_;
  const RankProgram* program_ = nullptr;
  int root_ = 0;
  size_t window_ = 0;  // messages in flight in each direction
  ReduceKernel kernel_ = nullptr;
  std::optional<Slots> slots_;
  std::vector<uint32_t> sends_, receives_, moves_;  // step numbers
  size_t next_send_ = 0, next_receive_ = 0, next_move_ = 0;
  std::vector<bool> done_;
  size_t num_done_ = 0;
  uint64_t sent_nbytes_ = 0;
  Flights sending_, receiving_;
  TransferLog log_;
  std::vector<Buffer> spare_;
};

}  // namespace hocket
