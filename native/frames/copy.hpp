// Copies of frames: out of another process's memory, or into shared memory.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace hocket {

struct CopyPiece {
  uint64_t from;  // an address in process `owner`
  std::byte* to;
  uint64_t nbytes;
};

// One copy of several pieces.
class FrameCopy {
 public:
  // owner: the process whose memory is read with a system call, so that memory that is gone is an error; 0: this
  // process, whose memory is known to stay.
  FrameCopy(pid_t owner, std::vector<CopyPiece> pieces) : owner_(owner), pieces_(std::move(pieces)) {
    for (const CopyPiece& each : pieces_) nbytes_ += each.nbytes;
  }

  // Copies now.
  void run();
  // Copies in background threads; they call `at_end` when it has ended, whether it failed or not.
  static void begin(const std::shared_ptr<FrameCopy>& copy, std::function<void()> at_end);
  // Acquires the bytes that were written.
  bool has_ended() const { return num_left_.load(std::memory_order_acquire) == 0; }
  // Why it failed; "": it has not.
  std::string error();

 private:
  void copy(const CopyPiece& piece);

  const pid_t owner_;
  std::vector<CopyPiece> pieces_;
  uint64_t nbytes_ = 0;
  std::atomic<size_t> num_left_{1};  // pieces; release after the bytes of one are written
  std::mutex mutex_;
  std::string error_;
};

}  // namespace hocket
