#include "recorder/memory.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/proc_file.hpp"
#include "recorder/layout.hpp"

namespace hocket {

namespace {

constexpr const char* kFilePrefix = "hocket-recorder-";

std::string error_text(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

// `at` null: at any address.
void* map(int fd, size_t nbytes, void* at = nullptr) {
  void* base = mmap(at, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), fd, 0);
  return base == MAP_FAILED ? nullptr : base;
}

unsigned long long inode_of(int fd) {
  struct stat info{};
  return fstat(fd, &info) == 0 ? info.st_ino : 0;
}

// Whether another program uses the memory: not one that exec() has replaced by this one.
bool is_in_use(const RegionHeader& header) {
  if (header.magic != kRecorderMagic || header.owner_pid == 0) return false;
  const bool is_running = start_of_process(static_cast<int>(header.owner_pid)) == header.owner_started;
  const bool was_replaced =
      header.owner_pid == static_cast<uint32_t>(getpid()) && header.owner_image != random_of_image();
  return is_running && !was_replaced;
}

struct FileOwner {
  int pid = 0;
  unsigned long long started = 0;
};

// "hocket-recorder-NAMESPACE-PID-START"; the process 0 for another name, or another namespace.
FileOwner owner_of(const char* name) {
  unsigned long long space = 0;
  FileOwner owner;
  int length = 0;
  const size_t prefix = std::strlen(kFilePrefix);
  if (std::strncmp(name, kFilePrefix, prefix) != 0 ||
      std::sscanf(name + prefix, "%llu-%d-%llu%n", &space, &owner.pid, &owner.started, &length) != 3 ||
      name[prefix + static_cast<size_t>(length)] != '\0' || space != process_namespace())
    return {};
  return owner;
}

// The number may have come to a process without the descriptor, and be that of another file there.
bool is_recorder_memfd(int fd) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "/proc/self/fd/%d", fd);
  std::array<char, 64> target{};
  const ssize_t length = readlink(text.data(), target.data(), target.size() - 1);
  return length > 0 && std::strcmp(target.data(), "/memfd:hocket-recorder (deleted)") == 0;
}

// Takes the launcher's memfd, which an earlier program of this rank may have used.
bool take_inherited(const char* text, size_t nbytes, RecorderMemory* memory) {
  char* end = nullptr;
  const long fd = std::strtol(text, &end, 10);
  struct stat info{};
  if (end == text || *end != '\0' || fd < 0 || !is_recorder_memfd(static_cast<int>(fd)) ||
      fstat(static_cast<int>(fd), &info) != 0) {
    memory->reason = std::string(kRecorderFdVariable) + " names a descriptor that this process does not have";
    return false;
  }
  if (static_cast<size_t>(info.st_size) < nbytes && ftruncate(static_cast<int>(fd), static_cast<off_t>(nbytes)) != 0) {
    memory->reason = error_text("the launcher's memory cannot have the size of a recorder");
    return false;
  }
  void* base = map(static_cast<int>(fd), nbytes);
  if (!base) {
    memory->reason = error_text("the launcher's memory cannot be mapped");
    return false;
  }
  const auto& header = *static_cast<const RegionHeader*>(base);
  if (is_in_use(header)) {
    memory->reason = "process " + std::to_string(header.owner_pid) + " of the same rank uses the launcher's memory";
    munmap(base, nbytes);
    return false;
  }
  std::memset(base, 0, kHeaderNbytes);
  // Pages that an earlier program wrote become zero.
  fallocate(static_cast<int>(fd), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(nbytes));
  fcntl(static_cast<int>(fd), F_SETFD, FD_CLOEXEC);
  memory->residence = Residence::inherited;
  memory->base = base;
  memory->fd = static_cast<int>(fd);
  memory->reason.clear();
  return true;
}

std::string folder_for_file() {
  for (const char* variable : {kRecorderFolderVariable, "XDG_RUNTIME_DIR"})
    if (const char* value = std::getenv(variable); value != nullptr && value[0] == '/') return value;
  return "/dev/shm";
}

// Removes the files of this user's processes that have ended without removing them.
void remove_files_of_the_dead(const std::string& folder) {
  DIR* entries = opendir(folder.c_str());
  if (!entries) return;
  while (const dirent* entry = readdir(entries)) {
    const auto [pid, started] = owner_of(entry->d_name);
    if (pid == 0 || start_of_process(pid) == started) continue;
    struct stat info{};
    if (fstatat(dirfd(entries), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode) &&
        info.st_uid == geteuid())
      unlinkat(dirfd(entries), entry->d_name, 0);
  }
  closedir(entries);
}

// Of this process before exec(): its start is in the name, so no other process has this path.
int make_file_again(const std::string& path) {
  const int old = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  struct stat info{};
  RegionHeader header{};
  const bool is_ours = old >= 0 && fstat(old, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid() &&
                       pread(old, &header, sizeof header, 0) == sizeof header && !is_in_use(header);
  if (old >= 0) close(old);
  errno = EEXIST;
  if (!is_ours) return -1;
  if (keeps_recorder_files())
    rename(path.c_str(), (path + "-" + std::to_string(header.owner_image)).c_str());
  else
    unlink(path.c_str());
  return open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
}

// A program may have its standard input or output closed and get one of these numbers for its next file, or count on
// getting the lowest free one.
int move_out_of_the_way(int fd) {
  constexpr int kLeast = 200;
  if (fd < 0) return fd;
  const int moved = fcntl(fd, F_DUPFD_CLOEXEC, kLeast);
  if (moved < 0) return fd;
  close(fd);
  return moved;
}

bool make_file(size_t nbytes, RecorderMemory* memory, void* at = nullptr) {
  const std::string folder = folder_for_file();
  if (!keeps_recorder_files()) remove_files_of_the_dead(folder);
  const std::string path = folder + "/" + kFilePrefix + std::to_string(process_namespace()) + "-" +
                           std::to_string(getpid()) + "-" + std::to_string(start_of_process(getpid()));
  int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0 && errno == EEXIST) fd = make_file_again(path);
  fd = move_out_of_the_way(fd);
  if (fd < 0) {
    memory->reason = error_text(("no file in " + folder).c_str());
    return false;
  }
  // All pages now: a write to a page that a full file system cannot give is a SIGBUS later.
  const int code = posix_fallocate(fd, 0, static_cast<off_t>(nbytes));
  errno = code;
  void* base = code == 0 ? map(fd, nbytes, at) : nullptr;
  if (!base) {
    memory->reason = error_text(("no room in " + folder).c_str());
    unlink(path.c_str());
    close(fd);
    return false;
  }
  memory->residence = Residence::file;
  memory->base = base;
  memory->fd = fd;
  memory->path = path;
  return true;
}

// A memfd of its own is readable from outside as long as the process lives, also if it hangs.
void make_own(size_t nbytes, RecorderMemory* memory, void* at = nullptr) {
  memory->fd = move_out_of_the_way(memfd_create("hocket-recorder", MFD_CLOEXEC));
  if (memory->fd >= 0 && ftruncate(memory->fd, static_cast<off_t>(nbytes)) == 0)
    memory->base = map(memory->fd, nbytes, at);
  if (!memory->base) {
    const int flags = MAP_SHARED | MAP_ANONYMOUS | (at ? MAP_FIXED : 0);
    void* base = mmap(at, nbytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (base != MAP_FAILED) memory->base = base;
  }
  if (memory->base) memory->residence = Residence::own;
}

}  // namespace

// Numbers of processes are those of a namespace, and containers may share /dev/shm.
unsigned long long process_namespace() {
  struct stat info{};
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

unsigned long long start_of_process(int pid) {
  std::array<char, 64> path = {"/proc/self/stat"};  // right, too, where /proc has the numbers of another namespace
  if (pid != getpid()) std::snprintf(path.data(), path.size(), "/proc/%d/stat", pid);
  const ProcText text = read_proc_file(path.data());
  const char* after_name = std::strrchr(text.data(), ')');  // the name may contain spaces and parentheses
  constexpr int kStartAfterName = 20;                       // field 22; the first after the name is field 3
  return after_name
             ? static_cast<unsigned long long>(std::max<int64_t>(parse_field(after_name + 1, kStartAfterName), 0))
             : 0;
}

uint64_t random_of_image() {
  uint64_t value = 0;
  if (const auto* bytes = reinterpret_cast<const void*>(getauxval(AT_RANDOM))) std::memcpy(&value, bytes, sizeof value);
  return value;
}

bool keeps_recorder_files() {
  const char* value = std::getenv(kRecorderKeepVariable);
  return value && std::strcmp(value, "1") == 0;
}

RecorderMemory open_recorder_memory(size_t nbytes) {
  RecorderMemory memory;
  const char* wanted = std::getenv(kRecorderVariable);
  if (wanted && std::strcmp(wanted, "0") == 0) return memory;
  const char* fd = std::getenv(kRecorderFdVariable);
  const bool is_inherited = fd && take_inherited(fd, nbytes, &memory);
  if (!is_inherited && !make_file(nbytes, &memory)) make_own(nbytes, &memory);
  memory.inode = inode_of(memory.fd);
  return memory;
}

void replace_in_child(RecorderMemory& memory, size_t nbytes) {
  if (!memory.base) return;
  if (!memory.of_parent) {
    void* free_place = mmap(nullptr, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (free_place != MAP_FAILED &&
        mremap(memory.base, nbytes, nbytes, MREMAP_MAYMOVE | MREMAP_FIXED, free_place) != MAP_FAILED) {
      mprotect(free_place, nbytes, PROT_READ);
      memory.of_parent = free_place;
    }
  }
  RecorderMemory own;
  if (!keeps_recorder_files() || !make_file(nbytes, &own, memory.base)) make_own(nbytes, &own, memory.base);
  if (!own.base) _exit(127);  // the parent's memory cannot stay
  if (memory.fd >= 0 && inode_of(memory.fd) == memory.inode) close(memory.fd);
  memory.fd = own.fd;
  memory.inode = inode_of(own.fd);
  memory.residence = own.residence;
  memory.path = own.path;
}

}  // namespace hocket
