#include "frames/incoming.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "core/error.hpp"
#include "frames/device_loan.hpp"
#include "shm/peer_memory.hpp"

namespace hocket {

namespace {

constexpr uint64_t kBufferBytes = 64 << 10;
// Frames of at least this size are read straight into their memory, which is their own: so a small one does not keep a
// large one alive.
constexpr uint64_t kOwnBytes = 32 << 10;
// Descriptors are read in parts: no memory is taken for more of them than have come.
constexpr uint64_t kDescriptorsAtOnce = 4096;
// File descriptors of one call; and those whose headers have not come yet.
constexpr size_t kMostDescriptors = 16;
constexpr size_t kMostWaitingDescriptors = 64;

}  // namespace

IncomingRecords::IncomingRecords(int fd, int lender, uint64_t most_nbytes, bool is_local, bool has_carrier,
                                 bool takes_loans)
    : fd_(fd),
      lender_(lender),
      most_nbytes_(most_nbytes),
      is_local_(is_local),
      has_carrier_(has_carrier),
      takes_loans_(takes_loans),
      buffer_(new std::byte[kBufferBytes]) {}

IncomingRecords::~IncomingRecords() { end(); }

void IncomingRecords::end() {
  for (const int fd : fds_) close(fd);
  fds_.clear();
  segments_.clear();
  buffer_ = nullptr;
  record_ = {};
}

std::byte* IncomingRecords::target() const {
  if (part_ == Part::header) return reinterpret_cast<std::byte*>(const_cast<RecordHeader*>(&header_));
  if (part_ == Part::descriptors) {
    const uint64_t before = descriptors_.size() - wanted_ / sizeof(FrameDescriptor);
    return reinterpret_cast<std::byte*>(const_cast<FrameDescriptor*>(descriptors_.data() + before));
  }
  const ReceivedFrame& frame = record_.frames[in_stream_[frame_]];
  return frame.block->data() + frame.offset;
}

IncomingRecords::State IncomingRecords::read(std::vector<ReceivedRecord>& records) {
  if (!buffer_) return State::ended;  // after end()
  begin_ = end_ = 0;                  // consume() has used everything
  iovec parts[2];
  int num_parts = 0;
  if (missing() >= kOwnBytes) parts[num_parts++] = {target() + filled_, missing()};
  parts[num_parts++] = {buffer_.get(), kBufferBytes};
  const ssize_t count = receive(parts, num_parts);
  if (count == 0) return State::ended;
  if (count < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return State::empty;
    if (errno == ECONNRESET || errno == EPIPE) return State::ended;
    throw Failure(ErrorCode::peer_failure, std::string("cannot receive: ") + std::strerror(errno));
  }
  uint64_t left = static_cast<uint64_t>(count);
  if (num_parts == 2) {
    const uint64_t direct = std::min(left, missing());
    filled_ += direct;
    left -= direct;
  }
  end_ = left;
  try {
    consume(records);
  } catch (...) {
    stop();
    throw;
  }
  return State::open;
}

ssize_t IncomingRecords::receive(iovec* parts, int num_parts) {
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))];
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = static_cast<size_t>(num_parts);
  if (is_local_) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }
  ssize_t count;
  do count = recvmsg(fd_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  while (count < 0 && errno == EINTR);
  if (count >= 0 && message.msg_controllen) take_descriptors(message);
  return count;
}

void IncomingRecords::take_descriptors(msghdr& message) {
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(each) + i * sizeof(int), sizeof(fd));
      fds_.push_back(fd);
    }
  }
  if ((message.msg_flags & MSG_CTRUNC) || fds_.size() > kMostWaitingDescriptors)
    refuse_record("file descriptors come without segments");
}

// The segment of a header; its descriptor has come with the header.
void IncomingRecords::map_segment() {
  if (fds_.empty()) refuse_record("a segment has no file descriptor");
  const int fd = fds_.front();
  fds_.pop_front();
  segments_.add(header_.number, fd, header_.nbytes);
}

void IncomingRecords::consume(std::vector<ReceivedRecord>& records) {
  for (;;) {
    while (missing() == 0) advance(records);
    const uint64_t count = std::min(end_ - begin_, missing());
    if (count == 0) return;
    std::memcpy(target() + filled_, buffer_.get() + begin_, count);
    begin_ += count;
    filled_ += count;
  }
}

void IncomingRecords::advance(std::vector<ReceivedRecord>& records) {
  if (part_ == Part::frames) {
    ++frame_;
    next_frame(records);
  } else if (part_ == Part::header && header_.kind != RecordKind::message) {
    take_header(records);
  } else if (part_ == Part::header) {
    begin_message();
  } else if (descriptors_.size() < header_.number) {
    wanted_ = std::min<uint64_t>(header_.number - descriptors_.size(), kDescriptorsAtOnce) * sizeof(FrameDescriptor);
    filled_ = 0;
    descriptors_.resize(descriptors_.size() + wanted_ / sizeof(FrameDescriptor));
  } else {
    begin_frames();
    next_frame(records);
  }
}

void IncomingRecords::begin_header() {
  part_ = Part::header;
  wanted_ = sizeof(RecordHeader);
  filled_ = 0;
  record_ = {};
}

// A record that is only a header.
void IncomingRecords::take_header(std::vector<ReceivedRecord>& records) {
  check_header();
  if (header_.kind == RecordKind::segment) {
    map_segment();
  } else if (header_.kind == RecordKind::dropped) {
    segments_.remove(header_.number);
  } else if (header_.kind == RecordKind::taken || header_.kind == RecordKind::returned ||
             header_.kind == RecordKind::ready) {
    records.push_back({header_, {}, 0, 0, 0});
  } else {
    refuse_record("a record has the kind " + std::to_string(static_cast<int>(header_.kind)));
  }
  begin_header();
}

void IncomingRecords::check_header() const {
  if (header_.zero[0] || header_.zero[1] || header_.zero[2]) refuse_record("a header has bytes that must be 0");
}

void IncomingRecords::begin_message() {
  check_header();
  if (header_.nbytes / sizeof(FrameDescriptor) < header_.number)
    refuse_record(std::to_string(header_.number) + " frames do not fit into " + std::to_string(header_.nbytes) +
                  " bytes");
  if (header_.number > most_nbytes_ / sizeof(FrameDescriptor)) refuse_record("a message has too many frames");
  record_.header = header_;
  descriptors_.clear();
  part_ = Part::descriptors;
  wanted_ = filled_ = 0;
}

void IncomingRecords::begin_frames() {
  uint64_t in_stream = 0, small = 0, total = 0;
  const uint64_t expected = header_.nbytes - header_.number * sizeof(FrameDescriptor);
  for (const FrameDescriptor& each : descriptors_) {
    if (each.nbytes > most_nbytes_ || total > most_nbytes_ - each.nbytes)
      refuse_record("a message has more than the " + std::to_string(most_nbytes_) + " bytes that are allowed");
    total += each.nbytes;
    if (each.place == FramePlace::stream) {
      in_stream += each.nbytes;
      if (each.nbytes < kOwnBytes) small += each.nbytes;
    } else if (each.place == FramePlace::lent) {
      check_lent(each);
      record_.lent_nbytes += each.nbytes;
    } else if (each.place == FramePlace::segment && each.nbytes) {
      record_.shared_nbytes += each.nbytes;
    } else if (each.place == FramePlace::carried && each.nbytes && has_carrier_) {
      record_.carried_nbytes += each.nbytes;
    } else if (each.place == FramePlace::device && each.nbytes == kLoanBytes && takes_loans_) {
      in_stream += each.nbytes;
      small += each.nbytes;
      ++record_.num_loans;
    } else {
      refuse_record("a frame is at no place that is known");
    }
  }
  if (in_stream != expected)
    refuse_record("the frames have " + std::to_string(in_stream) + " bytes, but the record " +
                  std::to_string(expected));
  const std::shared_ptr<FrameBlock> shared = small ? BlockPool::mine().take(small) : nullptr;
  uint64_t offset = 0;
  record_.frames.reserve(descriptors_.size());
  in_stream_.clear();
  frame_ = 0;
  for (const FrameDescriptor& each : descriptors_) {
    const bool is_loan = each.place == FramePlace::device;
    if (is_loan || (each.place == FramePlace::stream && each.nbytes)) in_stream_.push_back(record_.frames.size());
    if (each.place == FramePlace::segment) {
      record_.frames.push_back({segments_.block(each.segment, each.nbytes), 0, each.nbytes, 0});
    } else if (!is_loan && (each.place != FramePlace::stream || each.nbytes >= kOwnBytes)) {
      const uint64_t address = each.place == FramePlace::lent ? each.address : 0;
      record_.frames.push_back(
          {BlockPool::mine().take(each.nbytes), 0, each.nbytes, address, each.place == FramePlace::carried});
    } else {
      record_.frames.push_back({shared, offset, each.nbytes, 0, false, is_loan});
      offset += each.nbytes;
    }
  }
  part_ = Part::frames;
}

// Memory is taken only for what is there.
void IncomingRecords::check_lent(const FrameDescriptor& frame) const {
  if (!lender_) refuse_record("a frame lies in memory that this process cannot read");
  if (frame.nbytes == 0 || frame.address == 0 || frame.address + frame.nbytes < frame.address)
    refuse_record("a lent frame has no bytes");
  if (!may_read_range(lender_, frame.address, frame.nbytes))
    throw Failure(ErrorCode::peer_failure, "the peer's memory of a frame cannot be read: the peer may have ended");
}

void IncomingRecords::next_frame(std::vector<ReceivedRecord>& records) {
  filled_ = 0;
  if (frame_ < in_stream_.size()) {
    wanted_ = record_.frames[in_stream_[frame_]].nbytes;
    return;
  }
  check_loans();
  records.push_back(std::move(record_));
  begin_header();
}

void IncomingRecords::check_loans() const {
  uint64_t total = 0;
  for (const ReceivedFrame& each : record_.frames) {
    const uint64_t nbytes = each.is_loan ? loan_from(each.block->data() + each.offset).nbytes : each.nbytes;
    if (nbytes > most_nbytes_ || total > most_nbytes_ - nbytes)
      refuse_record("a message has more than the " + std::to_string(most_nbytes_) + " bytes that are allowed");
    total += nbytes;
  }
}

}  // namespace hocket
