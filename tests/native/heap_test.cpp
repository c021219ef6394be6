// The heap that the ranks of a host share: allocate, free and detach blocks.
#include "shm/heap.hpp"

#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "check.hpp"
#include "core/error.hpp"
#include "shm/host.hpp"

using namespace hocket;

namespace {

constexpr uint64_t kBegin = heap_begin(kMostSegmentBytes);
constexpr uint64_t kBytes = 4ull << 30;  // fits into the address space under a sanitizer

bool is_filled(const std::byte* begin, uint64_t nbytes, int value) {
  for (uint64_t i = 0; i < nbytes; ++i)
    if (begin[i] != static_cast<std::byte>(value)) return false;
  return true;
}

void ranks_see_each_other() {
  const Fd segment = create_segment(kMostSegmentBytes);
  Heap first(segment.get(), 0, 2, kBegin, kBytes), second(segment.get(), 1, 2, kBegin, kBytes);
  std::byte* const x = first.allocate(10000);
  std::byte* const y = second.allocate(10000);
  CHECK(is_filled(x, 10000, 0));
  std::memset(x, 1, 10000);
  std::memset(y, 2, 10000);
  const auto place = first.place_of(x + 100, 9900);
  CHECK(place.has_value());
  CHECK(is_filled(second.at(0, *place), 9900, 1));
  CHECK(is_filled(first.at(1, *second.place_of(y, 10000)), 10000, 2));
  std::memset(second.at(0, *place), 3, 5);
  CHECK(x[100] == std::byte{3} && x[105] == std::byte{1});
  CHECK(!first.place_of(y, 1) && !second.place_of(x, 1));
  CHECK(!first.place_of(reinterpret_cast<const std::byte*>(&segment), 1));
  CHECK(!first.place_of(x, 1ull << 43));
}

void memory_is_used_again() {
  const Fd segment = create_segment(kMostSegmentBytes);
  Heap heap(segment.get(), 0, 1, kBegin, kBytes);
  std::vector<std::byte*> blocks;
  constexpr uint64_t kLarge = 100 << 20;  // two such blocks are kept
  for (int i = 0; i < 6; ++i) blocks.push_back(heap.allocate(kLarge));
  CHECK(heap.num_allocated() == 6 * kLarge);
  for (const int i : {4, 5, 3, 1, 2}) {
    std::memset(blocks[static_cast<size_t>(i)], 9, 5000);
    heap.free(blocks[static_cast<size_t>(i)]);
  }
  std::byte* const kept = heap.allocate(kLarge);
  CHECK(kept == blocks[4] || kept == blocks[5]);
  CHECK(is_filled(kept, 5000, 9));
  std::byte* const three = heap.allocate(3 * kLarge);  // adjacent blocks were merged and their pages released
  CHECK(three == blocks[1]);
  CHECK(is_filled(three, 5000, 0) && is_filled(three + 2 * kLarge, 5000, 0));
  CHECK(heap.num_allocated() == 5 * kLarge);
  heap.free(three);
  heap.free(three);  // a second free has no effect
  heap.free(kept);
  heap.free(blocks[0]);
  CHECK(heap.num_allocated() == 0);
  std::byte* const huge = heap.allocate(4 << 20);
  CHECK((huge - heap.at(0, 0)) % (2 << 20) == 0);
  bool has_thrown = false;
  try {
    heap.allocate(kBytes + 1);
  } catch (const Failure& failure) {
    has_thrown = failure.error().code == ErrorCode::resource_exhausted;
  }
  CHECK(has_thrown);
}

void detached_memory_is_private() {
  const Fd segment = create_segment(kMostSegmentBytes);
  Heap heap(segment.get(), 0, 2, kBegin, kBytes), other(segment.get(), 1, 2, kBegin, kBytes);
  std::byte* const x = heap.allocate(20000);
  std::byte* const y = heap.allocate(20000);
  std::memset(x, 5, 20000);
  std::memset(y, 6, 20000);
  const uint64_t place = *heap.place_of(x, 20000);
  heap.detach(x + 7000);
  CHECK(is_filled(x, 20000, 5));
  CHECK(!heap.place_of(x, 20000) && !heap.place_of(x + 19999, 1) && heap.place_of(y, 20000));
  std::memset(other.at(0, place), 8, 20000);  // a rank that does not know of detach()
  CHECK(is_filled(x, 20000, 5) && is_filled(y, 20000, 6));
  heap.detach(x);
  heap.free(x);
  CHECK(is_filled(x, 20000, 5));
  CHECK(heap.allocate(20000) != x);
}

void threads_allocate_at_once() {
  const Fd segment = create_segment(kMostSegmentBytes);
  Heap heap(segment.get(), 0, 1, kBegin, kBytes);
  std::vector<std::thread> threads;
  for (int number = 1; number <= 4; ++number)
    threads.emplace_back([&heap, number] {
      for (int i = 0; i < 200; ++i) {
        const uint64_t nbytes = static_cast<uint64_t>(1 + (number * 37 + i * 101) % 30000);
        std::byte* const block = heap.allocate(nbytes);
        std::memset(block, number, nbytes);
        CHECK(is_filled(block, nbytes, number));
        heap.free(block);
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(heap.num_allocated() == 0);
}

}  // namespace

int main() {
  ranks_see_each_other();
  memory_is_used_again();
  detached_memory_is_private();
  threads_allocate_at_once();
  std::puts("heap_test: all checks passed");
}
