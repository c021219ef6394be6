#include "recorder/end_status.hpp"

#include <errno.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "core/clock.hpp"
#include "core/proc_file.hpp"

namespace hocket {

namespace {

int64_t ns_of(const timeval& time) { return time.tv_sec * 1'000'000'000LL + time.tv_usec * 1'000LL; }

// Returns the number after "NAME: " at the start of a line, or -1 if no line has that name.
int64_t number_of(const ProcText& text, const char* name) {
  const size_t length = std::strlen(name);
  for (const char* line = text.data(); line != nullptr && *line != '\0';) {
    if (std::strncmp(line, name, length) == 0 && line[length] == ':') return parse_field(line + length + 1, 1);
    line = std::strchr(line, '\n');
    if (line != nullptr) ++line;
  }
  return -1;
}

}  // namespace

void read_end_status(EndStatus& status) {
  const int error = errno;
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) {
    status.cpu_ns = ns_of(usage.ru_utime) + ns_of(usage.ru_stime);
    status.minor_faults = usage.ru_minflt;
    status.major_faults = usage.ru_majflt;
  }
  status.voluntary_switches = status.forced_switches = -1;
  const bool is_main_thread = syscall(SYS_gettid) == getpid();
  if (is_main_thread && getrusage(RUSAGE_THREAD, &usage) == 0) {
    status.voluntary_switches = usage.ru_nvcsw;
    status.forced_switches = usage.ru_nivcsw;
  }
  const ProcText stat = read_proc_file("/proc/self/stat");
  const char* after_name = std::strrchr(stat.data(), ')');
  constexpr int kThreadsAfterName = 18;  // field 20; the first after the name is field 3
  constexpr int kPagesAfterName = 22;
  const int64_t num_pages = after_name ? parse_field(after_name + 1, kPagesAfterName) : -1;
  status.num_threads = after_name ? parse_field(after_name + 1, kThreadsAfterName) : -1;
  status.resident_nbytes = num_pages < 0 ? -1 : num_pages * sysconf(_SC_PAGESIZE);
  const ProcText io = read_proc_file("/proc/self/io");
  status.read_nbytes = number_of(io, "rchar");
  status.written_nbytes = number_of(io, "wchar");
  status.device_read_nbytes = number_of(io, "read_bytes");
  status.device_written_nbytes = number_of(io, "write_bytes");
  status.cpu_wait_ns = parse_field(read_proc_file("/proc/self/schedstat").data(), 1);
  std::atomic_ref(status.monotonic_ns).store(now_ns(), std::memory_order_release);
  errno = error;
}

}  // namespace hocket
