// Which descriptor is which file: a table of what was decided when a descriptor was first seen, and the names.
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <mutex>
#include <string_view>

#include "hooks/io.hpp"

namespace hocket::hooks::io {

namespace {

// An entry is 0, or kNotAFile, or kFirstFile + the number of a file; above that, how often it has changed, so that one
// who looked at a descriptor that was closed meanwhile does not store what he saw.
constexpr uint32_t kUnknown = 0;
constexpr uint32_t kNotAFile = 1;
constexpr uint32_t kFirstFile = 1;
constexpr size_t kNumEntries = 1 << 15;  // higher descriptors are looked at again by each call
constinit std::array<std::atomic<uint64_t>, kNumEntries> g_entries{};
constinit std::atomic<unsigned> g_highest{0};

constinit std::atomic<FileNumber> g_other_files{kNoFile};
constinit std::atomic<pid_t> g_process{0};

struct KnownName {
  uint64_t hash;
  FileNumber number;  // kNoFile: free
};
struct KnownDevice {
  uint64_t device;
  bool is_of_kernel;
};

// Under the lock.
constexpr size_t kNumNames = 2048;                            // a power of two
constexpr size_t kMostNames = kNumNames / 4 * 3;              // later ones are other files
constexpr uint64_t kMostNameNbytes = kDefinitionsNbytes / 2;  // the rest is for other definitions
struct Names {
  std::mutex mutex;
  std::array<KnownName, kNumNames> names{};
  size_t num_names = 0;
  uint64_t nbytes = 0;
  std::array<KnownDevice, 32> devices{};
  size_t num_devices = 0;
  std::array<char, 4096> text{};
  uint64_t signals_before_fork = 0;
};
constinit Names g_names;

thread_local bool t_was_inside = false;

bool is_table(int fd) { return fd >= 0 && static_cast<size_t>(fd) < kNumEntries; }

bool is_file_system_of_kernel(int fd, uint64_t device) {
  for (size_t i = 0; i < g_names.num_devices; ++i)
    if (g_names.devices[i].device == device) return g_names.devices[i].is_of_kernel;
  struct statfs info{};
  if (fstatfs(fd, &info) != 0) return false;
  bool is_of_kernel = false;
  for (const unsigned long type : {PROC_SUPER_MAGIC, SYSFS_MAGIC, CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC,
                                   DEBUGFS_MAGIC, TRACEFS_MAGIC, SECURITYFS_MAGIC})
    is_of_kernel |= static_cast<unsigned long>(info.f_type) == type;
  if (g_names.num_devices < g_names.devices.size()) g_names.devices[g_names.num_devices++] = {device, is_of_kernel};
  return is_of_kernel;
}

std::string_view name_of(int fd, const struct stat& info) {
  std::array<char, 48> link{"/proc/thread-self/fd/"};
  char* end = link.data() + std::strlen(link.data());
  *std::to_chars(end, link.data() + link.size() - 1, fd).ptr = '\0';
  auto& text = g_names.text;
  const ssize_t length = readlink(link.data(), text.data(), text.size());
  if (length > 0) {
    std::string_view name(text.data(), static_cast<size_t>(length));
    constexpr std::string_view kDeleted = " (deleted)";
    if (info.st_nlink == 0 && name.ends_with(kDeleted)) name.remove_suffix(kDeleted.size());
    return name;
  }
  char* at = text.data();  // without /proc
  char* const last = at + text.size();
  for (const uint64_t number : {uint64_t{major(info.st_dev)}, uint64_t{minor(info.st_dev)}, uint64_t{info.st_ino}}) {
    if (at != text.data()) *at++ = ':';
    at = std::to_chars(at, last, number).ptr;
  }
  return {text.data(), static_cast<size_t>(at - text.data())};
}

// Programs read thousands of modules and libraries: those of a kind are one file, which has the kind's name.
std::string_view kind_of_code(std::string_view name) {
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  for (size_t dot = name.rfind('.'); dot != std::string_view::npos && is_number(name.substr(dot + 1));
       dot = name.rfind('.'))
    name = name.substr(0, dot);
  for (const std::string_view each : {"*.pyc", "*.py", "*.so"})
    if (name.ends_with(each.substr(1))) return each;
  return {};
}

// kNoFile: memory without a name, and recorders.
FileNumber number_of(std::string_view name) {
  const std::string_view last = name.substr(name.rfind('/') + 1);
  if (name.starts_with("/memfd:") || last.starts_with("hocket-recorder-")) return kNoFile;
  if (const std::string_view kind = kind_of_code(last); !kind.empty()) name = kind;
  uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
  for (const char each : name) hash = (hash ^ static_cast<unsigned char>(each)) * 0x100000001b3ull;
  hash ^= hash >> 29;
  for (size_t place = hash;; ++place) {
    KnownName& known = g_names.names[place & (kNumNames - 1)];
    if (known.number != kNoFile && known.hash == hash) return known.number;
    if (known.number != kNoFile) continue;
    const uint64_t nbytes = sizeof(DefinitionHeader) + (name.size() + 7) / 8 * 8;
    if (g_names.num_names >= kMostNames || g_names.nbytes + nbytes > kMostNameNbytes) return other_files();
    ++g_names.num_names;
    g_names.nbytes += nbytes;
    known = {hash, Recorder::instance().define(DefinitionKind::file, name)};
    return known.number;
  }
}

FileNumber look_at(int fd) {
  struct stat info{};
  if (!is_own_process()) return kNoFile;
  uint64_t before = is_table(fd) ? g_entries[static_cast<size_t>(fd)].load(std::memory_order_acquire) : 0;
  if (fstat(fd, &info) != 0) return kNoFile;
  FileNumber number = kNoFile;
  if (S_ISREG(info.st_mode) || S_ISBLK(info.st_mode)) {
    const SignalsBlocked blocked;
    const std::lock_guard guard(g_names.mutex);
    if (!is_file_system_of_kernel(fd, info.st_dev)) number = number_of(name_of(fd, info));
  }
  if (is_table(fd)) {
    const auto place = static_cast<unsigned>(fd);
    for (unsigned highest = g_highest.load(std::memory_order_relaxed); highest < place;)
      if (g_highest.compare_exchange_weak(highest, place, std::memory_order_relaxed)) break;
    const uint32_t entry = number == kNoFile ? kNotAFile : kFirstFile + number;
    g_entries[static_cast<size_t>(fd)].compare_exchange_strong(before, (before & ~0xffffffffull) | entry,
                                                               std::memory_order_release, std::memory_order_relaxed);
  }
  return number;
}

}  // namespace

bool is_own_process() { return getpid() == g_process.load(std::memory_order_relaxed); }

FileNumber other_files() { return g_other_files.load(std::memory_order_relaxed); }

FileNumber known_file_of(int fd) {
  if (!is_table(fd)) return kNoFile;
  const auto entry = static_cast<uint32_t>(g_entries[static_cast<size_t>(fd)].load(std::memory_order_acquire));
  return entry <= kNotAFile ? kNoFile : entry - kFirstFile;
}

FileNumber file_of(int fd) {
  if (fd < 0 || !is_recording()) return kNoFile;
  if (is_table(fd)) {
    const auto entry = static_cast<uint32_t>(g_entries[static_cast<size_t>(fd)].load(std::memory_order_acquire));
    if (entry != kUnknown) return entry == kNotAFile ? kNoFile : entry - kFirstFile;
  }
  const int code = errno;
  const FileNumber number = look_at(fd);
  errno = code;
  return number;
}

void forget(int fd) {
  if (!is_table(fd)) return;
  std::atomic<uint64_t>& entry = g_entries[static_cast<size_t>(fd)];
  uint64_t before = entry.load(std::memory_order_relaxed);
  while (!entry.compare_exchange_weak(before, ((before >> 32) + 1) << 32, std::memory_order_acq_rel)) {
  }
}

unsigned highest_known() { return g_highest.load(std::memory_order_relaxed); }

void forget_range(unsigned first, unsigned last) {
  last = std::min(last, highest_known());
  for (unsigned fd = first; fd <= last; ++fd) forget(static_cast<int>(fd));
}

void start_files() {
  g_process.store(getpid(), std::memory_order_relaxed);
  if (other_files() == kNoFile)
    g_other_files.store(Recorder::instance().define(DefinitionKind::file, "other files"), std::memory_order_relaxed);
}

void lock_files() {
  const uint64_t before = block_signals();
  g_names.mutex.lock();
  g_names.signals_before_fork = before;
  lock_slots();
  t_was_inside = t_is_inside;  // a function of the program that MPI calls may fork
  t_is_inside = true;          // the recorder makes its new memory in the child
}

void unlock_files(bool is_child) {
  if (is_child) {
    g_names.names = {};
    g_names.num_names = 0;
    g_names.nbytes = 0;
    forget_range(0, kNumEntries - 1);
    g_other_files.store(kNoFile, std::memory_order_relaxed);
    start_files();
    if (g_is_on.load(std::memory_order_relaxed)) start_totals();
  }
  const uint64_t before = g_names.signals_before_fork;
  unlock_slots();
  g_names.mutex.unlock();
  t_is_inside = t_was_inside;
  restore_signals(before);
}

}  // namespace hocket::hooks::io
