#include "shm/peer_memory.hpp"

#include <sys/prctl.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "core/error.hpp"

namespace hocket {

namespace {

ssize_t copy_from(int pid, uint64_t address, std::byte* to, size_t nbytes) {
  const iovec local{to, nbytes};
  const iovec remote{reinterpret_cast<void*>(address), nbytes};  // NOLINT: an address of the other process
  return process_vm_readv(pid, &local, 1, &remote, 1, 0);
}

bool is_enabled() {
  static const bool enabled = [] {
    const char* value = std::getenv("HOCKET_SINGLE_COPY");
    if (value && std::string(value) == "0") return false;
    // With Yama scope 1, only a parent may read its children, so each process must permit the others to read it.
    std::ifstream scope("/proc/sys/kernel/yama/ptrace_scope");
    int level = 0;
    if (scope >> level && level == 1) prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    return true;
  }();
  return enabled;
}

}  // namespace

bool may_read_memory(int pid) {
  if (!is_enabled()) return false;
  // No memory is mapped there: the error is EFAULT if reading is permitted, else EPERM.
  constexpr uint64_t kNowhere = 4096;
  std::byte byte;
  return copy_from(pid, kNowhere, &byte, 1) >= 0 || errno == EFAULT;
}

bool read_memory(int pid, uint64_t address, std::byte* to, size_t nbytes) {
  while (nbytes > 0) {
    const ssize_t count = copy_from(pid, address, to, nbytes);
    if (count < 0 && errno == ESRCH) return false;
    if (count <= 0)
      throw Failure(ErrorCode::aborted, "cannot read the memory of process " + std::to_string(pid) + ": " +
                                            std::strerror(count < 0 ? errno : EFAULT));
    address += static_cast<uint64_t>(count);
    to += count;
    nbytes -= static_cast<size_t>(count);
  }
  return true;
}

bool may_read_range(int pid, uint64_t address, uint64_t nbytes) {
  std::byte byte;
  return copy_from(pid, address, &byte, 1) == 1 && copy_from(pid, address + nbytes - 1, &byte, 1) == 1;
}

}  // namespace hocket
