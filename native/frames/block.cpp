#include "frames/block.hpp"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

#include "core/units.hpp"
#include "frames/background.hpp"

namespace hocket {

namespace {

// Smaller blocks come from malloc, which keeps them itself.
constexpr uint64_t kMappedBytes = 64 << 10;
// So many bytes at most are kept of freed blocks.
constexpr uint64_t kMostKeptBytes = 256 << 20;

// Sizes that are kept: an eighth of a power of two apart, so that at most an eighth of a block is unused.
uint64_t size_class(uint64_t nbytes) { return round_up(nbytes, std::max(std::bit_floor(nbytes) / 8, kPageBytes)); }

std::byte* map(uint64_t nbytes) {
  void* data = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  if (nbytes >= kHugePageBytes) madvise(data, nbytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(data);
}

}  // namespace

BlockPool& BlockPool::mine() {
  static auto* const pool = new BlockPool;  // NOLINT: blocks outlive static objects
  return *pool;
}

// A child that is forked while another thread has the lock would never get it.
BlockPool::BlockPool() {
  pthread_atfork([] { mine().mutex_.lock(); }, [] { mine().mutex_.unlock(); },
                 [] {
                   mine().is_trimmed_ = false;  // the child has none of its parent's threads
                   mine().mutex_.unlock();
                 });
}

std::shared_ptr<FrameBlock> BlockPool::take(uint64_t nbytes) {
  if (nbytes < kMappedBytes) {
    auto* const data = static_cast<std::byte*>(std::malloc(std::max<uint64_t>(nbytes, 1)));
    if (!data) throw std::bad_alloc();
    return {new FrameBlock(data, nbytes), [](FrameBlock* block) {
              std::free(block->data());
              delete block;
            }};
  }
  const uint64_t size = size_class(nbytes);
  std::byte* data = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(kept_.rbegin(), kept_.rend(), [&](const Kept& each) { return each.nbytes == size; });
    if (found != kept_.rend()) {
      data = found->data;
      kept_nbytes_ -= size;
      kept_.erase(std::next(found).base());
    }
  }
  if (!data) data = map(size);
  return {new FrameBlock(data, nbytes), [size, this](FrameBlock* block) {
            give_back(block->data(), size);
            delete block;
          }};
}

void BlockPool::give_back(std::byte* data, uint64_t nbytes) {
  bool needs_trim = false;
  {
    std::unique_lock lock(mutex_);
    kept_.push_back({data, nbytes, std::chrono::steady_clock::now()});
    kept_nbytes_ += nbytes;
    needs_trim = !std::exchange(is_trimmed_, true);
    shrink_to(kMostKeptBytes, lock);
  }
  if (needs_trim) run_in_background([] {});  // after that the thread looks at what is kept
}

// Unmaps the oldest blocks until at most so many bytes are kept; without the lock, since that takes long.
void BlockPool::shrink_to(uint64_t nbytes, std::unique_lock<std::mutex>& lock) {
  std::vector<Kept> gone;
  while (kept_nbytes_ > nbytes) {
    gone.push_back(kept_.front());
    kept_nbytes_ -= kept_.front().nbytes;
    kept_.pop_front();
  }
  lock.unlock();
  for (const Kept& each : gone) munmap(each.data, each.nbytes);
}

bool BlockPool::trim(std::chrono::steady_clock::time_point until) {
  std::unique_lock lock(mutex_);
  uint64_t old = 0;
  for (const Kept& each : kept_) old += each.freed < until ? each.nbytes : 0;
  const uint64_t left = kept_nbytes_ - old;
  is_trimmed_ = left > 0;
  shrink_to(left, lock);
  return left > 0;
}

}  // namespace hocket
