#include "core/bell.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>

#include "core/clock.hpp"
#include "core/error.hpp"

namespace hocket {

Bell& Bell::mine() {
  static auto* bell = new Bell;  // NOLINT
  return *bell;
}

Bell::Bell() {
  fd_ = memfd_create("hocket-bell", MFD_CLOEXEC);
  void* page = MAP_FAILED;
  if (fd_ >= 0 && ftruncate(fd_, 4096) == 0 && fallocate(fd_, 0, 0, 4096) == 0)
    page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (page == MAP_FAILED) {
    const std::string why = std::strerror(errno);
    if (fd_ >= 0) close(fd_);
    throw Failure(ErrorCode::resource_exhausted, "cannot create one page of shared memory: " + why);
  }
  word_ = static_cast<BellWord*>(page);
  has_membarrier_ = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
  if (!has_membarrier_) detail::ringers_fence.store(true, std::memory_order_relaxed);
}

void Bell::prepare_sleep() {
  // seq_cst: the locked instruction that the side without membarrier relies on.
  word_->exchange(1, std::memory_order_seq_cst);
  if (has_membarrier_) syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
}

void Bell::sleep(int64_t timeout_ns) {
  timespec timeout{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  // Shared, not FUTEX_PRIVATE: ringers are other processes.
  syscall(SYS_futex, word_, FUTEX_WAIT, 1, &timeout, nullptr, 0);
}

namespace detail {

void ring_slow(BellWord& word) {
  // Several threads of the sleeper's process may wait: wake all; each looks for itself.
  if (word.exchange(0, std::memory_order_acq_rel)) syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void fence_by_locked_instruction() {
  static std::atomic<uint32_t> dummy{0};
  dummy.fetch_add(1, std::memory_order_seq_cst);
}

}  // namespace detail

}  // namespace hocket
