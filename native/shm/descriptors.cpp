#include "shm/descriptors.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>

#include "shm/segment.hpp"

namespace hocket {

namespace {

constexpr int kSpare = 4;

struct Reserve {
  Fd kept[2] = {Fd(open("/dev/null", O_RDONLY | O_CLOEXEC)), Fd(open("/dev/null", O_RDONLY | O_CLOEXEC))};
};
Reserve g_reserve;

}  // namespace

void release_reserve() {
  for (Fd& each : g_reserve.kept) each = Fd();
}

// A connection, a doorbell and a pidfd of every rank; the listener and the segment.
int descriptors_needed_to_lead(int size) { return 3 * size + 2 + kSpare; }

// The descriptors of one welcome message, and the pidfd of every rank, which is kept.
int descriptors_needed(int size) { return 2 * std::min(size, kPeersPerMessage) + 1 + size + kSpare; }

int most_descriptors() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, INT32_MAX));
}

int free_descriptors(int most) {
  int num_open = 0;
  if (DIR* folder = opendir("/proc/self/fd")) {
    while (const dirent* entry = readdir(folder)) num_open += entry->d_name[0] != '.';
    closedir(folder);
    return most - (num_open - 1);  // one of them is `folder`
  }
  return errno == EMFILE ? 0 : most;
}

Error descriptor_shortage(int rank, int free, int most, int needed) {
  return {ErrorCode::resource_exhausted,
          "rank " + std::to_string(rank) + " of this host needs " + std::to_string(needed) +
              " file descriptors to start and has " + std::to_string(free) + " of " + std::to_string(most) +
              " free: raise the limit (ulimit -n)",
          {rank}};
}

}  // namespace hocket
