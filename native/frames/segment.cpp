#include "frames/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/units.hpp"
#include "frames/background.hpp"
#include "frames/wire.hpp"

namespace hocket {

namespace {

constexpr uint64_t kLeastBytes = 64 << 10;
constexpr uint64_t kLargeBytes = 16 << 20;
// Segments of one connection; and of all of this process. Large ones leave room for small ones.
constexpr uint64_t kMostBytes = 256 << 20, kMostLargeBytes = 192 << 20;
constexpr uint64_t kMostBytesOfProcess = 512 << 20, kMostLargeBytesOfProcess = 384 << 20;
constexpr size_t kMostSegments = 256;
// A segment that was not used for so long gives its place to one of another size.
constexpr int64_t kUnusedNs = 1'000'000'000;
// Of the segments of a peer.
constexpr uint64_t kMostPeerBytes = 4 * kMostBytes;

// Relaxed: a limit, which may be passed by what two threads make at the same time.
std::atomic<uint64_t> g_nbytes{0}, g_large_nbytes{0};

uint64_t large_bytes(uint64_t nbytes) { return nbytes >= kLargeBytes ? nbytes : 0; }

// Positive: of a new segment; negative: of one that has gone.
void count_bytes(int64_t nbytes) {
  g_nbytes.fetch_add(static_cast<uint64_t>(nbytes), std::memory_order_relaxed);
  const uint64_t large = large_bytes(static_cast<uint64_t>(std::abs(nbytes)));
  g_large_nbytes.fetch_add(nbytes < 0 ? -large : large, std::memory_order_relaxed);
}

[[noreturn]] void fail(const std::string& what) {
  throw Failure(ErrorCode::resource_exhausted, what + ": " + std::strerror(errno));
}

}  // namespace

SegmentMemory::SegmentMemory(int fd, uint64_t nbytes, bool is_own) : is_own_(is_own), fd_(fd), nbytes_(nbytes) {
  void* data = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    close(fd);
    fail("cannot map a shared segment");
  }
  data_ = static_cast<std::byte*>(data);
  if (is_own) count_bytes(static_cast<int64_t>(nbytes));
}

SegmentMemory::~SegmentMemory() {
  munmap(data_, nbytes_);
  close_fd();
  if (is_own_) count_bytes(-static_cast<int64_t>(nbytes_));
}

void SegmentMemory::close_fd() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

std::shared_ptr<SegmentMemory> SegmentMemory::make(uint64_t nbytes) {
  const int fd = memfd_create("hocket-frames", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) fail("cannot create a shared segment");
  // The size is sealed: memory that disappears under a reader would end its process.
  if (ftruncate(fd, static_cast<off_t>(nbytes)) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 ||
      fallocate(fd, 0, 0, static_cast<off_t>(nbytes)) != 0) {
    const int error = errno;
    close(fd);
    errno = error;
    fail("cannot create a shared segment of " + std::to_string(nbytes) + " bytes");
  }
  std::shared_ptr<SegmentMemory> memory(new SegmentMemory(fd, nbytes, true));
  for (uint64_t at = 0; at < nbytes; at += kPageBytes) memory->data()[at] = std::byte{0};
  return memory;
}

std::shared_ptr<SegmentMemory> SegmentMemory::open(int fd, uint64_t nbytes) {
  struct stat status;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &status) != 0 || !nbytes ||
      static_cast<uint64_t>(status.st_size) < nbytes) {
    close(fd);
    refuse_record("it shares a file descriptor that is not a sealed segment of " + std::to_string(nbytes) + " bytes");
  }
  std::shared_ptr<SegmentMemory> memory(new SegmentMemory(fd, nbytes, false));
  memory->close_fd();
  return memory;
}

OwnSegments::OwnSegments() : made_(std::make_shared<Made>()) {}

// Takes the segments that were made meanwhile.
void OwnSegments::take_over() {
  std::vector<std::shared_ptr<SegmentMemory>> made;
  {
    const std::lock_guard lock(made_->mutex);
    made.swap(made_->segments);
  }
  for (auto& memory : made) {
    const auto free =
        std::find_if(segments_.begin(), segments_.end(), [](const Segment& each) { return !each.memory; });
    Segment& place = free == segments_.end() ? segments_.emplace_back() : *free;
    place = {std::move(memory), false, false, now_ns()};
  }
}

std::optional<OwnSegments::Lease> OwnSegments::lease(uint64_t nbytes) {
  take_over();
  size_t best = segments_.size();
  for (size_t i = 0; i < segments_.size(); ++i) {
    const Segment& each = segments_[i];
    if (!each.memory || each.is_leased || each.memory->nbytes() < nbytes || each.memory->nbytes() / 4 > nbytes)
      continue;
    if (best == segments_.size() || each.memory->nbytes() < segments_[best].memory->nbytes()) best = i;
  }
  if (best == segments_.size()) {
    make(std::bit_ceil(std::max(nbytes, kLeastBytes)));
    return std::nullopt;
  }
  Segment& found = segments_[best];
  found.is_leased = true;
  found.used_ns = now_ns();
  const auto news = found.is_told ? nullptr : found.memory;
  found.is_told = true;
  return Lease{static_cast<uint32_t>(best), found.memory->data(), news};
}

void OwnSegments::give_back(uint32_t number) {
  if (number >= segments_.size() || !segments_[number].is_leased)
    refuse_record("it returns a segment that it does not have");
  segments_[number].is_leased = false;
  segments_[number].used_ns = now_ns();
}

void OwnSegments::trim(int64_t since_ns) {
  take_over();
  for (size_t i = 0; i < segments_.size(); ++i)
    if (segments_[i].memory && !segments_[i].is_leased && segments_[i].used_ns < since_ns) drop(i);
}

void OwnSegments::clear() {
  segments_.clear();
  const std::lock_guard lock(made_->mutex);
  made_->segments.clear();
  made_->is_over = true;
}

bool OwnSegments::has_any() const {
  return std::any_of(segments_.begin(), segments_.end(), [](const Segment& each) { return each.memory != nullptr; });
}

void OwnSegments::drop(size_t number) {
  if (segments_[number].is_told) dropped_.push_back(static_cast<uint32_t>(number));
  segments_[number] = {};
}

// Drops segments that were not used for a while, the longest unused first, until there is room for another one.
bool OwnSegments::make_room(uint64_t nbytes) {
  uint64_t own = nbytes, own_large = large_bytes(nbytes);
  size_t count = 1;
  std::vector<size_t> unused;
  for (size_t i = 0; i < segments_.size(); ++i) {
    const Segment& each = segments_[i];
    if (!each.memory) continue;
    own += each.memory->nbytes();
    own_large += large_bytes(each.memory->nbytes());
    ++count;
    if (!each.is_leased && now_ns() - each.used_ns > kUnusedNs) unused.push_back(i);
  }
  const auto fits = [&] {
    return own <= kMostBytes && (own_large <= kMostLargeBytes || nbytes < kLargeBytes) && count <= kMostSegments &&
           g_nbytes.load(std::memory_order_relaxed) + nbytes <= kMostBytesOfProcess &&
           g_large_nbytes.load(std::memory_order_relaxed) + large_bytes(nbytes) <= kMostLargeBytesOfProcess;
  };
  std::sort(unused.begin(), unused.end(),
            [this](size_t a, size_t b) { return segments_[a].used_ns < segments_[b].used_ns; });
  for (const size_t each : unused) {
    if (fits()) break;
    own -= segments_[each].memory->nbytes();
    own_large -= large_bytes(segments_[each].memory->nbytes());
    --count;
    drop(each);
  }
  return fits();
}

void OwnSegments::make(uint64_t nbytes) {
  {
    const std::lock_guard lock(made_->mutex);
    if (made_->being_made) return;  // one at a time: most frames come one after another
  }
  if (nbytes > kMostLargeBytes || !make_room(nbytes)) return;
  {
    const std::lock_guard lock(made_->mutex);
    made_->being_made = true;
  }
  run_in_background([made = made_, nbytes] {
    std::shared_ptr<SegmentMemory> memory;
    try {
      memory = SegmentMemory::make(nbytes);
    } catch (const std::exception&) {  // no memory is left for segments: frames go the other ways
    }
    const std::lock_guard lock(made->mutex);
    made->being_made = false;
    if (memory && !made->is_over) made->segments.push_back(std::move(memory));
  });
}

PeerSegments::PeerSegments() : returns_(std::make_shared<Returns>()) {}

void PeerSegments::add(uint32_t number, int fd, uint64_t nbytes) {
  if (mapped_.contains(number) || nbytes > kMostPeerBytes - nbytes_ || mapped_.size() >= 4 * kMostSegments) {
    close(fd);
    refuse_record("it shares too many segments");
  }
  mapped_.emplace(number, Mapped{SegmentMemory::open(fd, nbytes), false});
  nbytes_ += nbytes;
}

void PeerSegments::remove(uint32_t number) {
  const auto found = mapped_.find(number);
  if (found == mapped_.end() || found->second.is_used) refuse_record("it drops a segment that is not free");
  nbytes_ -= found->second.memory->nbytes();
  mapped_.erase(found);
}

std::shared_ptr<FrameBlock> PeerSegments::block(uint32_t number, uint64_t nbytes) {
  const auto found = mapped_.find(number);
  if (found == mapped_.end() || found->second.is_used || nbytes > found->second.memory->nbytes())
    refuse_record("a frame is in a segment that is not free");
  found->second.is_used = true;
  return {new FrameBlock(found->second.memory->data(), nbytes),
          [memory = found->second.memory, returns = returns_, number](FrameBlock* block) {
            delete block;
            const std::lock_guard lock(returns->mutex);
            returns->numbers.push_back(number);
            returns->has_any.store(true, std::memory_order_relaxed);
          }};
}

std::vector<uint32_t> PeerSegments::to_return() {
  std::vector<uint32_t> numbers;
  {
    const std::lock_guard lock(returns_->mutex);
    numbers = std::exchange(returns_->numbers, {});
    returns_->has_any.store(false, std::memory_order_relaxed);
  }
  for (const uint32_t each : numbers) mapped_.at(each).is_used = false;
  return numbers;
}

}  // namespace hocket
