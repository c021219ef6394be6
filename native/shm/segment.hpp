// Anonymous shared memory: a memfd, and mappings of parts of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace hocket {

// Owner of a file descriptor; the destructor closes it.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// A mapping of a part of a file; the destructor unmaps it.
class Mapping {
 public:
  Mapping() = default;
  // Throws ResourceExhausted. Pages are not allocated.
  Mapping(int fd, uint64_t offset, uint64_t nbytes);
  Mapping(Mapping&& other) noexcept : data_(std::exchange(other.data_, nullptr)), nbytes_(other.nbytes_) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(nbytes_, other.nbytes_);
    return *this;
  }
  ~Mapping();
  std::byte* data() const { return data_; }
  uint64_t nbytes() const { return nbytes_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t nbytes_ = 0;
};

// Creates a sparse memfd, larger than all parts that are used. It is sealed against shrinking: a process that maps a
// part never gets SIGBUS for a page that was allocated.
Fd create_segment(uint64_t nbytes);

// Allocates pages now, so that exhaustion is an error here and not a SIGBUS at the first touch. Throws
// ResourceExhausted.
void allocate_pages(int fd, uint64_t offset, uint64_t nbytes);
// Releases pages to the system; the range reads as zero afterwards.
void release_pages(int fd, uint64_t offset, uint64_t nbytes);

}  // namespace hocket
