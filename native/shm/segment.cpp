#include "shm/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "core/error.hpp"

namespace hocket {

namespace {
[[noreturn]] void fail(const std::string& what, uint64_t nbytes) {
  throw Failure(ErrorCode::resource_exhausted,
                "cannot " + what + " " + std::to_string(nbytes) + " bytes of shared memory: " + std::strerror(errno));
}
}  // namespace

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

Mapping::Mapping(int fd, uint64_t offset, uint64_t nbytes) : nbytes_(nbytes) {
  void* data =
      mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, static_cast<off_t>(offset));
  if (data == MAP_FAILED) fail("map", nbytes);
  data_ = static_cast<std::byte*>(data);
}

Mapping::~Mapping() {
  if (data_) munmap(data_, nbytes_);
}

Fd create_segment(uint64_t nbytes) {
  Fd fd(memfd_create("hocket", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ftruncate(fd.get(), static_cast<off_t>(nbytes)) != 0) fail("reserve", nbytes);
  fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return fd;
}

void allocate_pages(int fd, uint64_t offset, uint64_t nbytes) {
  while (fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(nbytes)) != 0)
    if (errno != EINTR) fail("allocate", nbytes);
}

void release_pages(int fd, uint64_t offset, uint64_t nbytes) {
  fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(nbytes));
}

}  // namespace hocket
