// Takes the bytes of a stream apart into records; nothing of them is believed.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "frames/block.hpp"
#include "frames/segment.hpp"
#include "frames/wire.hpp"

namespace hocket {

// A frame that has come, or will be copied: a part of a block.
struct ReceivedFrame {
  std::shared_ptr<FrameBlock> block;
  uint64_t offset;
  uint64_t nbytes;
  uint64_t address;  // in the sender's memory; 0: the bytes come in the stream or by a carrier, or are here
  bool is_carried = false;
  bool is_loan = false;  // the bytes are a loan of a frame in device memory
};

struct ReceivedRecord {
  RecordHeader header;
  std::vector<ReceivedFrame> frames;
  uint64_t lent_nbytes;
  uint64_t shared_nbytes;   // in segments
  uint64_t carried_nbytes;  // by a carrier
  uint64_t num_loans = 0;   // frames in device memory

  uint64_t outside_nbytes() const { return lent_nbytes + shared_nbytes + carried_nbytes; }
};

class IncomingRecords {
 public:
  // lender: process whose memory may be read; 0: frames cannot be lent. A message has most_nbytes at most. On a local
  // socket the peer may share segments. Frames may come by a carrier if the connection has one, and from device memory
  // if this process can open the peer's.
  IncomingRecords(int fd, int lender, uint64_t most_nbytes, bool is_local, bool has_carrier, bool takes_loans);
  ~IncomingRecords();
  IncomingRecords(const IncomingRecords&) = delete;
  IncomingRecords& operator=(const IncomingRecords&) = delete;

  enum class State { open, empty, ended };
  // Reads from the socket once, and appends the records that are complete. `empty`: nothing was there. Throws Failure
  // if the bytes are no records, or the socket fails; then nothing more is read.
  State read(std::vector<ReceivedRecord>& records);
  PeerSegments& segments() { return segments_; }
  // Reads nothing more.
  void stop() { buffer_ = nullptr; }
  // Frees what only further records would need.
  void end();

 private:
  enum class Part { header, descriptors, frames };

  // Where the next bytes go.
  std::byte* target() const;
  uint64_t missing() const { return wanted_ - filled_; }
  void consume(std::vector<ReceivedRecord>& records);
  void advance(std::vector<ReceivedRecord>& records);
  void begin_header();
  void take_header(std::vector<ReceivedRecord>& records);
  void check_header() const;
  void begin_message();
  void begin_frames();
  void check_lent(const FrameDescriptor& frame) const;
  void check_loans() const;
  void next_frame(std::vector<ReceivedRecord>& records);
  ssize_t receive(iovec* parts, int num_parts);
  void take_descriptors(msghdr& message);
  void map_segment();

  const int fd_;
  const int lender_;
  const uint64_t most_nbytes_;
  const bool is_local_;
  const bool has_carrier_;
  const bool takes_loans_;
  std::deque<int> fds_;  // that came with headers that are not read yet
  PeerSegments segments_;
  std::unique_ptr<std::byte[]> buffer_;
  uint64_t begin_ = 0, end_ = 0;  // of what the buffer has

  Part part_ = Part::header;
  uint64_t wanted_ = sizeof(RecordHeader), filled_ = 0;
  RecordHeader header_{};
  std::vector<FrameDescriptor> descriptors_;
  ReceivedRecord record_{};
  std::vector<size_t> in_stream_;  // the frames that follow in the stream
  size_t frame_ = 0;               // of these, the one that is being filled
};

}  // namespace hocket
