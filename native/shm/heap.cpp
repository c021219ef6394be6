#include "shm/heap.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "core/error.hpp"
#include "core/process.hpp"
#include "core/units.hpp"
#include "shm/host.hpp"

namespace hocket {

namespace {

constexpr uint64_t kMostKeptBytes = 256 << 20;

}  // namespace

Heap::Heap(int segment, int rank, int size, uint64_t begin, uint64_t nbytes)
    : segment_(fcntl(segment, F_DUPFD_CLOEXEC, 0)),
      rank_(rank),
      begin_(begin),
      part_bytes_(nbytes / static_cast<uint64_t>(size) / kHugePageBytes * kHugePageBytes),
      mapping_(segment_.get(), begin, part_bytes_ * static_cast<uint64_t>(size)) {
  madvise(mapping_.data(), mapping_.nbytes(), MADV_DONTDUMP);
  madvise(mapping_.data(), mapping_.nbytes(),
          MADV_HUGEPAGE);  // has an effect if the system has huge pages for shared memory
  free_.emplace(0, part_bytes_);
}

Heap::~Heap() = default;

uint64_t Heap::reserve(uint64_t nbytes) {
  const uint64_t unit = nbytes >= kHugePageBytes ? kHugePageBytes : kPageBytes;
  for (const auto& [place, room] : free_) {
    const uint64_t begin = round_up(place, unit);
    if (begin + nbytes > place + room) continue;
    const uint64_t end = place + room;
    const uint64_t front = place;
    free_.erase(front);
    if (begin > front) free_.emplace(front, begin - front);
    if (begin + nbytes < end) free_.emplace(begin + nbytes, end - begin - nbytes);
    used_.emplace(begin, nbytes);
    return begin;
  }
  throw Failure(ErrorCode::resource_exhausted, "cannot allocate a shared array of " + std::to_string(nbytes) +
                                                   " bytes: this rank's " + std::to_string(part_bytes_ >> 30) +
                                                   " GiB of address space for shared arrays have no such free range");
}

std::byte* Heap::allocate(uint64_t nbytes) {
  nbytes = round_up(std::max<uint64_t>(nbytes, 1), kPageBytes);
  const std::lock_guard guard(mutex_);
  if (const auto kept = kept_.find(nbytes); kept != kept_.end()) {
    const uint64_t place = kept->second;
    kept_.erase(kept);
    num_kept_ -= nbytes;
    used_.emplace(place, nbytes);
    return at(rank_, place);
  }
  const uint64_t place = reserve(nbytes);
  const uint64_t offset = begin_ + static_cast<uint64_t>(rank_) * part_bytes_ + place;
  try {
    try {
      allocate_pages(segment_.get(), offset, nbytes);
    } catch (const Failure&) {
      if (kept_.empty()) throw;
      release_kept();
      allocate_pages(segment_.get(), offset, nbytes);
    }
  } catch (...) {
    used_.erase(place);
    release(place, nbytes);
    throw;
  }
  return at(rank_, place);
}

void Heap::free(const std::byte* begin) noexcept {
  if (g_forked_child.load(std::memory_order_relaxed)) return;  // the block belongs to the parent
  const std::lock_guard guard(mutex_);
  const auto found = used_.find(static_cast<uint64_t>(begin - own()));
  if (found == used_.end()) return;
  const auto [place, nbytes] = *found;
  used_.erase(found);
  if (num_kept_ + nbytes > kMostKeptBytes) return release(place, nbytes);
  kept_.emplace(nbytes, place);
  num_kept_ += nbytes;
}

void Heap::release_kept() noexcept {
  for (const auto& [nbytes, place] : kept_) release(place, nbytes);
  kept_.clear();
  num_kept_ = 0;
}

void Heap::release(uint64_t place, uint64_t nbytes) noexcept {
  release_pages(segment_.get(), begin_ + static_cast<uint64_t>(rank_) * part_bytes_ + place, nbytes);
  auto next = free_.lower_bound(place);
  if (next != free_.end() && place + nbytes == next->first) {
    nbytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == place) {
      before->second += nbytes;
      return;
    }
  }
  free_.emplace(place, nbytes);
}

void Heap::detach(const std::byte* begin) noexcept {
  const std::lock_guard guard(mutex_);
  const auto place = static_cast<uint64_t>(begin - own());
  const auto after = used_.upper_bound(place);
  if (after == used_.begin()) return;
  const auto block = std::prev(after);
  const auto [first, nbytes] = *block;
  if (place - first >= nbytes) return;
  void* copy = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return;
  std::memcpy(copy, at(rank_, first), nbytes);
  if (mremap(copy, nbytes, nbytes, MREMAP_MAYMOVE | MREMAP_FIXED, at(rank_, first)) == MAP_FAILED) {
    munmap(copy, nbytes);
    return;
  }
  used_.erase(block);  // the place is never free again
  detached_.emplace(first, nbytes);
}

std::optional<uint64_t> Heap::place_of(const std::byte* begin, uint64_t nbytes) const {
  const auto place = static_cast<uint64_t>(begin - own());
  if (begin < own() || place >= part_bytes_ || nbytes > part_bytes_ - place) return std::nullopt;
  if (!detached_.empty()) [[unlikely]] {
    const auto after = detached_.upper_bound(place);
    if (after != detached_.begin() && place - std::prev(after)->first < std::prev(after)->second) return std::nullopt;
  }
  return place;
}

uint64_t Heap::num_allocated() const {
  const std::lock_guard guard(mutex_);
  uint64_t nbytes = 0;
  for (const auto& [place, each] : used_) nbytes += each;
  return nbytes;
}

}  // namespace hocket
