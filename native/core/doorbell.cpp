#include "core/doorbell.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>

#include "core/clock.hpp"
#include "core/error.hpp"

namespace hocket {

Doorbell& Doorbell::mine() {
  static auto* doorbell = new Doorbell;  // NOLINT
  return *doorbell;
}

Doorbell::Doorbell() {
  fd_ = memfd_create("hocket-doorbell", MFD_CLOEXEC);
  void* page = MAP_FAILED;
  if (fd_ >= 0 && ftruncate(fd_, kPageBytes) == 0 && fallocate(fd_, 0, 0, kPageBytes) == 0)
    page = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (page == MAP_FAILED) {
    const std::string why = std::strerror(errno);
    if (fd_ >= 0) close(fd_);
    throw Failure(ErrorCode::resource_exhausted, "cannot create one page of shared memory: " + why);
  }
  page_ = static_cast<DoorbellPage*>(page);
  has_membarrier_ = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
  if (!has_membarrier_) detail::ringers_fence.store(true, std::memory_order_relaxed);
}

uint32_t Doorbell::prepare_sleep() {
  // seq_cst: without membarrier, this locked instruction is the sleeper's full barrier.
  const uint32_t word = page_->word.fetch_or(1, std::memory_order_seq_cst) | 1;
  if (has_membarrier_) syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
  return word;
}

bool Doorbell::sleep(uint32_t word, int64_t timeout_ns) {
  timespec timeout{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  // Shared, not FUTEX_PRIVATE: ringers are other processes.
  return syscall(SYS_futex, &page_->word, FUTEX_WAIT, word, &timeout, nullptr, 0) == 0 || errno != EINTR;
}

namespace detail {

void ring_slow(DoorbellPage& page) {
  // Several threads of the sleeper's process may sleep: wake all of them; each checks its own condition.
  uint32_t seen = page.word.load(std::memory_order_relaxed);
  while (seen & 1) {
    if (!page.word.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) continue;
    syscall(SYS_futex, &page.word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    break;
  }
}

void ring_peer(DoorbellPage& page) {
  page.ringer_processor.store(sched_getcpu(), std::memory_order_relaxed);
  ring_slow(page);
}

void fence_by_locked_instruction([[maybe_unused]] DoorbellPage& page) {
#if defined(__x86_64__)
  static std::atomic<uint32_t> dummy{0};
  dummy.fetch_add(1, std::memory_order_seq_cst);
#else
  page.word.fetch_add(0, std::memory_order_acq_rel);
#endif
}

}  // namespace detail

}  // namespace hocket
