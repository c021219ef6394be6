// Memory for received frames.
//
// A fresh mapping costs a page fault for every page that is written, as much time as the copy itself. So large blocks
// are kept when they are freed, up to a limit, and those that nobody has used for a while go back to the system.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

namespace hocket {

// Memory of a size; freed with the last reference, from any thread.
class FrameBlock {
 public:
  FrameBlock(std::byte* data, uint64_t nbytes) : data_(data), nbytes_(nbytes) {}
  std::byte* data() const { return data_; }
  uint64_t nbytes() const { return nbytes_; }

 private:
  std::byte* data_;
  uint64_t nbytes_;
};

class BlockPool {
 public:
  static BlockPool& mine();  // of this process; never destroyed: blocks may be freed until the process ends

  // Returns memory with arbitrary content; throws std::bad_alloc. Memory that is new is not touched.
  std::shared_ptr<FrameBlock> take(uint64_t nbytes);
  // Gives blocks back that were freed before `until`. Returns whether any are kept still; if so, the caller calls
  // again.
  bool trim(std::chrono::steady_clock::time_point until);

 private:
  struct Kept {
    std::byte* data;
    uint64_t nbytes;
    std::chrono::steady_clock::time_point freed;
  };

  void give_back(std::byte* data, uint64_t nbytes);
  void shrink_to(uint64_t nbytes, std::unique_lock<std::mutex>& lock);
  BlockPool();

  std::mutex mutex_;
  std::deque<Kept> kept_;  // the one freed first comes first
  uint64_t kept_nbytes_ = 0;
  bool is_trimmed_ = false;  // a background thread calls `trim` now and then
};

}  // namespace hocket
