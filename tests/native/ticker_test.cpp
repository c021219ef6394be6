// The ticker's thread exists while threads compete for the processors, and only then.
#include "core/ticker.hpp"

#include <dirent.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "core/clock.hpp"
#include "core/process.hpp"

using hocket::may_compete;
using hocket::now_ns;
using hocket::Ticker;

// The number of voluntary context switches of the thread with that name; -1 if it does not exist.
static long num_waits(const std::string& name) {
  const std::string tasks = "/proc/self/task";
  DIR* directory = opendir(tasks.c_str());
  long found = -1;
  while (const dirent* entry = readdir(directory)) {
    const std::string task = tasks + "/" + entry->d_name;
    std::string line;
    std::ifstream comm(task + "/comm");
    if (!std::getline(comm, line) || line != name) continue;
    std::ifstream status(task + "/status");
    const std::string title = "voluntary_ctxt_switches:";
    while (std::getline(status, line))
      if (line.compare(0, title.size(), title) == 0) found = std::stol(line.substr(title.size()));
  }
  closedir(directory);
  return found;
}

static void compute(int64_t ns) {
  const int64_t begin = now_ns();
  while (now_ns() - begin < ns) {
  }
}

int main() {
  setenv("HOCKET_COMPETE", "0", 1);
  Ticker::instance().note_delay(now_ns());
  if (may_compete() || Ticker::instance().is_running()) return std::puts("HOCKET_COMPETE=0 has no effect"), 1;

  std::atomic<bool> over{false};
  std::vector<std::thread> others;
  for (long i = 0; i < 2 * sysconf(_SC_NPROCESSORS_ONLN) + 2; ++i)
    others.emplace_back([&] {
      while (!over.load(std::memory_order_relaxed)) {
      }
    });
  Ticker forbidden(false);
  forbidden.note_delay(now_ns());
  if (forbidden.is_running()) return std::puts("the ticker runs although it is not allowed"), 1;

  Ticker ticker(true);
  ticker.note_delay(now_ns());
  compute(500'000'000);
  const long waits = num_waits("hocket ticker");
  ticker.stop();
  if (num_waits("hocket ticker") != -1) return std::puts("the thread still exists after stop()"), 1;
  ticker.note_delay(now_ns());
  if (!ticker.is_running()) return std::puts("the ticker does not start again"), 1;
  over.store(true);
  for (std::thread& other : others) other.join();
  if (waits < 200) return std::printf("the ticker woke up only %ld times in half a second\n", waits), 1;

  // This thread no longer waits for its processor, whatever else runs on the machine.
  const int64_t deadline = now_ns() + 20'000'000'000;
  while (ticker.is_running() && now_ns() < deadline) {
    const timespec pause{0, 10'000'000};
    nanosleep(&pause, nullptr);
  }
  if (ticker.is_running()) return std::puts("the ticker still runs although no thread is delayed"), 1;
  std::puts("ok");
  return 0;
}
