// No ring is ever lost: two sides wake each other many times, with random pauses that hit every moment before a sleep.
// Sleeps are so long that a lost ring fails the test instead of only slowing it down.
#include "core/doorbell.hpp"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "core/clock.hpp"
#include "tier.hpp"

namespace {

using namespace hocket;

const uint64_t kRounds = sampled_rounds<uint64_t>(50'000);
// More, because without system calls the critical moment and a round are shorter.
const uint64_t kFastRounds = sampled_rounds<uint64_t>(200'000);
constexpr int64_t kSleepNs = 20'000'000'000;
constexpr int64_t kLostNs = 10'000'000'000;

// Makes membarrier fail in this process from now on.
void forbid_membarrier() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof filter / sizeof filter[0], filter};
  CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

unsigned some_pauses(std::mt19937& random) { return random() % (1u << random() % 9); }  // mostly small

void pause_a_while(std::mt19937& random) {
  for (unsigned i = some_pauses(random); i > 0; --i) cpu_pause();
}

// Waits as Engine::wait() does: polls a random number of times, so that sleeps begin just when the other side
// publishes.
void wait_until(const std::atomic<uint64_t>& flag, uint64_t target, std::mt19937& random) {
  Doorbell& doorbell = Doorbell::mine();
  const int64_t begin = now_ns();
  while (true) {
    for (unsigned i = some_pauses(random); i > 0; --i) {
      if (flag.load(std::memory_order_acquire) >= target) return;
      cpu_pause();
    }
    const uint32_t word = doorbell.prepare_sleep();
    if (flag.load(std::memory_order_acquire) >= target) return;
    if (random() % 4 == 0) pause_a_while(random);
    doorbell.sleep(word, kSleepNs);
    CHECK(now_ns() - begin < kLostNs);
  }
}

struct Shared {
  alignas(64) std::atomic<uint64_t> flags[2];
  std::atomic<int> doorbell_fds[2];
};

// Maps the doorbell of another process, as the rendezvous does.
DoorbellPage& map_doorbell(pid_t pid, int fd) {
  const int own = open(("/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd)).c_str(), O_RDWR);
  CHECK(own >= 0);
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
  CHECK(page != MAP_FAILED);
  return *static_cast<DoorbellPage*>(page);
}

void play(Shared& shared, int side, pid_t peer_pid, uint64_t num_rounds) {
  shared.doorbell_fds[side].store(Doorbell::mine().fd());
  while (shared.doorbell_fds[1 - side].load() == 0) sched_yield();
  DoorbellPage& peer = map_doorbell(peer_pid, shared.doorbell_fds[1 - side].load());
  std::mt19937 random(static_cast<unsigned>(side));
  for (uint64_t round = 1; round <= num_rounds; ++round) {
    if (side == 1) wait_until(shared.flags[0], round, random);
    pause_a_while(random);
    shared.flags[side].store(round, std::memory_order_release);
    ring(peer);
    if (side == 0) wait_until(shared.flags[1], round, random);
  }
}

void test_processes(bool first_has_membarrier, bool second_has_membarrier) {
  void* page = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(page != MAP_FAILED);
  auto& shared = *static_cast<Shared*>(page);  // zero is its initial state
  const bool has[2] = {first_has_membarrier, second_has_membarrier};
  const pid_t outer = fork();
  if (outer == 0) {
    // Two processes that know each other's pids: this one and its child.
    const pid_t parent = getpid();
    const pid_t inner = fork();
    const int side = inner == 0;
    if (!has[side]) forbid_membarrier();
    if (!has[0] || !has[1]) detail::ringers_fence.store(true);  // as the rendezvous does on all ranks
    CHECK(Doorbell::mine().has_membarrier() <= has[side]);
    play(shared, side, side == 0 ? inner : parent, has[0] || has[1] ? kRounds : kFastRounds);
    int status = 0;
    if (side == 0) CHECK(waitpid(inner, &status, 0) == inner && status == 0);
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(outer, &status, 0) == outer && status == 0);
  munmap(page, sizeof(Shared));
}

// Threads share one doorbell; another thread makes its word odd again and again, also between their second look and
// their sleep.
void test_threads() {
  Shared shared{};
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int side : {0, 1})
    threads.emplace_back([&, side] {
      std::mt19937 random(static_cast<unsigned>(side));
      for (uint64_t round = 1; round <= kRounds / 2; ++round) {
        if (side == 1) wait_until(shared.flags[0], round, random);
        pause_a_while(random);
        shared.flags[side].store(round, std::memory_order_release);
        ring(Doorbell::mine().page());
        if (side == 0) wait_until(shared.flags[1], round, random);
      }
    });
  std::thread raises([&] {
    std::mt19937 random(3);
    while (!over.load()) {
      Doorbell::mine().prepare_sleep();
      pause_a_while(random);
      sched_yield();
    }
  });
  for (std::thread& thread : threads) thread.join();
  over.store(true);
  raises.join();
}

// A sleep ends by a ring since prepare_sleep() or by the timeout.
void test_ends_of_a_sleep() {
  Doorbell& doorbell = Doorbell::mine();
  const uint32_t word = doorbell.prepare_sleep();
  CHECK(word & 1 && doorbell.prepare_sleep() == word);
  ring(doorbell.page());
  const uint32_t next = doorbell.prepare_sleep();
  CHECK(next == word + 2);
  const int64_t begin = now_ns();
  CHECK(doorbell.sleep(word, kSleepNs));  // returns at once, because a ring came after `word`
  CHECK(now_ns() - begin < kLostNs);
  CHECK(doorbell.sleep(next, 1'000'000));
  CHECK(now_ns() - begin >= 1'000'000);
}

}  // namespace

int main() {
  test_processes(true, true);
  test_processes(false, false);
  test_processes(true, false);
  test_threads();
  test_ends_of_a_sleep();
  std::puts("doorbell: ok");
  return 0;
}
