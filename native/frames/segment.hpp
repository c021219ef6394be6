// Segments of shared memory between two processes, which the sender makes and lends to one frame at a time.
//
// Writing to a fresh segment costs a page fault for every page, more time than sending the bytes through a socket. So
// segments are made and filled with zeros in the background, while frames go other ways, and are then used again and
// again. The receiver maps each once. A segment that was not used for a while is dropped, when another one needs its
// place, or when it is trimmed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "frames/block.hpp"

namespace hocket {

// A mapping of a segment.
class SegmentMemory {
 public:
  // Makes a segment; throws Failure.
  static std::shared_ptr<SegmentMemory> make(uint64_t nbytes);
  // Maps a segment of another process; throws Failure if the descriptor is not one of nbytes that cannot shrink. Takes
  // the descriptor.
  static std::shared_ptr<SegmentMemory> open(int fd, uint64_t nbytes);
  ~SegmentMemory();
  SegmentMemory(const SegmentMemory&) = delete;
  SegmentMemory& operator=(const SegmentMemory&) = delete;

  std::byte* data() const { return data_; }
  uint64_t nbytes() const { return nbytes_; }
  // Until it was sent to the peer; the mapping needs none.
  int fd() const { return fd_; }
  void close_fd();

 private:
  SegmentMemory(int fd, uint64_t nbytes, bool is_own);

  const bool is_own_;  // made by this process, and counted
  int fd_;
  std::byte* data_;
  uint64_t nbytes_;
};

// The segments that one end has made.
class OwnSegments {
 public:
  struct Lease {
    uint32_t number;
    std::byte* data;
    // Set if the peer does not know the segment yet.
    std::shared_ptr<SegmentMemory> news;
  };

  OwnSegments();
  // A segment for a frame, if one is free; else one is made in the background, unless there are many already.
  std::optional<Lease> lease(uint64_t nbytes);
  // The peer has returned a segment; throws Failure if it did not have it.
  void give_back(uint32_t number);
  // Drops what was not used since a time of now_ns().
  void trim(int64_t since_ns);
  // Frees all, also what is being made; nobody may write to them any more.
  void clear();
  // The numbers of segments that were dropped, and that the peer is to forget; each once.
  std::vector<uint32_t> to_forget() { return std::exchange(dropped_, {}); }
  bool has_dropped() const { return !dropped_.empty(); }
  bool has_any() const;

 private:
  struct Segment {
    std::shared_ptr<SegmentMemory> memory;  // null: the number is free
    bool is_leased = false;
    bool is_told = false;
    int64_t used_ns = 0;
  };
  // Shared with the threads that make segments.
  struct Made {
    std::mutex mutex;
    std::vector<std::shared_ptr<SegmentMemory>> segments;
    bool being_made = false, is_over = false;
  };

  void take_over();
  void make(uint64_t nbytes);
  bool make_room(uint64_t nbytes);
  void drop(size_t number);

  std::vector<Segment> segments_;
  std::vector<uint32_t> dropped_;
  std::shared_ptr<Made> made_;
};

// The segments of the peer.
class PeerSegments {
 public:
  PeerSegments();
  // Maps a new one; throws Failure. Takes the descriptor.
  void add(uint32_t number, int fd, uint64_t nbytes);
  // Forgets one; throws Failure if there is no such segment, or a frame is in it.
  void remove(uint32_t number);
  // The memory of a frame; throws Failure if there is no such segment, or it has a frame already. The segment is to be
  // returned with the last reference.
  std::shared_ptr<FrameBlock> block(uint32_t number, uint64_t nbytes);
  // The segments that can be returned to the peer; each once.
  std::vector<uint32_t> to_return();
  // Forgets all; memory that a frame is in stays as long as the frame.
  void clear() { mapped_.clear(); }
  bool has_returns() const { return returns_->has_any.load(std::memory_order_relaxed); }

 private:
  struct Mapped {
    std::shared_ptr<SegmentMemory> memory;
    bool is_used;
  };
  // Shared with the blocks, which any thread may free.
  struct Returns {
    std::mutex mutex;
    std::vector<uint32_t> numbers;
    std::atomic<bool> has_any{false};  // relaxed: whoever sees it late returns the segment late
  };

  std::unordered_map<uint32_t, Mapped> mapped_;
  uint64_t nbytes_ = 0;
  std::shared_ptr<Returns> returns_;
};

}  // namespace hocket
