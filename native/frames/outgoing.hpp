// Bytes that wait until a socket takes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

namespace hocket {

// Bytes of someone else, kept until they are sent.
struct SentBytes {
  const std::byte* data;
  uint64_t nbytes;
  std::shared_ptr<void> owner;
  int fd = -1;           // that goes with the first byte, to a local socket; kept by the owner
  bool is_loan = false;  // of a frame in device memory, which the owner keeps
};

class OutgoingBytes {
 public:
  explicit OutgoingBytes(int fd) : fd_(fd) {}

  void add(SentBytes bytes);
  // Sends what the socket takes at once. Returns the number of bytes that are left; throws Failure if the peer has
  // closed the stream, or the socket fails.
  uint64_t flush();
  uint64_t nbytes() const { return nbytes_; }
  void clear();

 private:
  void drop(uint64_t sent);

  const int fd_;
  std::deque<SentBytes> queue_;
  uint64_t nbytes_ = 0;
};

}  // namespace hocket
