// The recorder: rings with one and with many writers, names, and its memory in forked children.
#include "recorder/recorder.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"

namespace {

using namespace hocket;

struct PrivateRing {
  explicit PrivateRing(uint64_t capacity) : events(capacity) { header.capacity = capacity; }

  RingHeader header{};
  std::vector<Event> events;
};

void test_one_writer_overwrites_the_oldest() {
  PrivateRing memory(8);
  SerialRing ring(&memory.header, memory.events.data());
  for (uint64_t number = 0; number < 20; ++number) {
    Event& event = ring.claim();
    CHECK((event.version & 1) == 1);
    event.nbytes = number;
    CHECK(ring.publish(event) == number);
    CHECK(event.version == 2 * (number / 8 + 1));
  }
  CHECK(ring.find(11) == nullptr && ring.find(12)->nbytes == 12 && ring.find(19)->nbytes == 19);
  CHECK(memory.header.issued == 20 && memory.header.recorded == 20);
}

// The ring is so small that writers lap each other. Each event says which thread wrote it, and all of its fields follow
// from its number.
void test_many_writers() {
  constexpr int kThreads = 4;
  constexpr uint64_t kEvents = 50'000;
  PrivateRing memory(16);
  SharedRing ring(&memory.header, memory.events.data());
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&, thread] {
      for (uint64_t number = 1; number <= kEvents; ++number) {
        Event event{};
        event.thread = static_cast<uint16_t>(thread);
        event.nbytes = number;
        event.aux = number * 3 + static_cast<uint64_t>(thread);
        const uint64_t index = ring.add(event);
        ring.update(index, [&](Event& own) {
          CHECK(own.thread == thread && own.nbytes == number);
          own.t_end = own.aux;
          own.state = EventState::completed;
        });
      }
    });
  for (std::thread& each : threads) each.join();
  const RingHeader& header = memory.header;
  CHECK(header.issued == kThreads * kEvents && header.sampled_out == 0);
  CHECK(header.recorded + header.dropped == header.issued && header.next == header.issued);
  for (const Event& event : memory.events) {
    CHECK((event.version & 1) == 0 && event.aux == event.nbytes * 3 + event.thread);
    CHECK(event.state == EventState::issued || event.t_end == event.aux);
  }
}

void test_a_slot_that_a_writer_never_left() {
  PrivateRing memory(4);
  SharedRing ring(&memory.header, memory.events.data());
  memory.events[1].version = 1;  // interrupted inside
  for (int i = 0; i < 8; ++i) ring.add(Event{});
  CHECK(memory.header.dropped == 2 && memory.header.recorded == 6 && memory.events[1].version == 1);
}

void test_an_event_that_was_overwritten_is_not_changed() {
  PrivateRing memory(4);
  SharedRing ring(&memory.header, memory.events.data());
  const uint64_t first = ring.add(Event{});
  for (int i = 0; i < 4; ++i) ring.add(Event{});
  ring.update(first, [](Event&) { CHECK(false); });
  ring.update(SharedRing::kNone, [](Event&) { CHECK(false); });
}

void test_sampling_counts_what_it_leaves_out() {
  PrivateRing memory(1024);
  memory.header.sampling_log2 = 3;
  SharedRing ring(&memory.header, memory.events.data());
  for (int i = 0; i < 800; ++i) ring.add(Event{});
  CHECK(memory.header.recorded == 100 && memory.header.sampled_out == 700 && memory.header.issued == 800);
  CHECK(memory.events[99].weight_log2 == 3);
}

// A program repeats itself: every second event may be a receive, and neither kind is always left out.
void test_sampling_does_not_follow_a_pattern() {
  for (const uint64_t sampling : {1, 2, 5, 8}) {
    PrivateRing memory(1 << 14);
    memory.header.sampling_log2 = sampling;
    SharedRing ring(&memory.header, memory.events.data());
    const uint64_t num_events = 256ull << sampling;
    for (uint64_t number = 0; number < num_events; ++number) {
      Event event{};
      event.nbytes = number % 2;
      ring.add(event);
    }
    uint64_t num_odd = 0;
    for (uint64_t i = 0; i < 256; ++i) num_odd += memory.events[i].nbytes;
    CHECK(memory.header.recorded == 256 && num_odd > 96 && num_odd < 160);
  }
}

// The first measurement of the cost is above the budget, which is the least one.
void test_a_change_of_sampling_is_an_event() {
  for (const uint64_t sampling_of_process : {0, 8}) {
    PrivateRing memory(1024);
    PrivateRing process(16);
    memory.header.most_cost_ppm = 1;
    memory.header.window_begin = ticks() - 2 * kLeastWindowTicks;
    process.header.sampling_log2 = sampling_of_process;  // such an event is never left out
    process.header.issued = 1;
    SharedRing ring(&memory.header, memory.events.data(), {&process.header, process.events.data(), RingId::io});
    Event event{};
    event.thread = 9;
    for (uint64_t number = 0; number < kCostInterval; ++number) ring.add(event);
    CHECK(memory.header.sampling_log2 == 0 && process.header.recorded == 0);
    ring.add(event);
    CHECK(memory.header.sampling_log2 == 1 && process.header.issued == 2 && process.header.recorded == 1);
    const Event& change = process.events[0];
    CHECK(change.kind == static_cast<uint8_t>(ProcessKind::sampling) && change.layer == Layer::process);
    CHECK(change.aux == 1 && change.comm == static_cast<uint32_t>(RingId::io) && change.thread == 9);
    CHECK(change.state == EventState::completed && change.t_begin == change.t_end && change.t_end > 0);
    CHECK(change.weight_log2 == 0 && change.version == 2);
  }
}

std::string folder;

std::vector<std::string> files() {
  std::vector<std::string> names;
  DIR* entries = opendir(folder.c_str());
  while (const dirent* entry = readdir(entries))
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  closedir(entries);
  return names;
}

// Runs a function in a child, which ends as a process does; returns its status.
template <typename Function>
int in_child(Function function) {
  const pid_t pid = fork();
  if (pid == 0) {
    function();
    std::exit(0);
  }
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid);
  return status;
}

const RegionHeader& header() { return *static_cast<const RegionHeader*>(Recorder::instance().memory().base); }

void test_a_file_is_removed_at_a_normal_end() {
  CHECK(in_child([] {
          CHECK(Recorder::instance().memory().residence == Residence::file && files().size() == 1);
          struct stat info{};
          CHECK(stat(Recorder::instance().memory().path.c_str(), &info) == 0 && (info.st_mode & 0777) == 0600);
          CHECK(header().magic == kRecorderMagic && header().owner_pid == static_cast<uint32_t>(getpid()));
          CHECK(header().owner_started == start_of_process(getpid()) && header().owner_started > 0);
        }) == 0);
  CHECK(files().empty());
}

void test_the_next_start_removes_the_file_of_a_killed_process() {
  const int status = in_child([] {
    Recorder::instance();
    raise(SIGKILL);
  });
  CHECK(WIFSIGNALED(status) && files().size() == 1);
  const std::string other = folder + "/hocket-recorder-1-elsewhere";
  close(open(other.c_str(), O_CREAT | O_WRONLY, 0600));
  CHECK(in_child([] { Recorder::instance(); }) == 0);
  CHECK(files() == std::vector<std::string>{"hocket-recorder-1-elsewhere"});
  unlink(other.c_str());
}

void test_a_forked_child_has_memory_of_its_own() {
  CHECK(in_child([] {
          Recorder& recorder = Recorder::instance();
          recorder.define(DefinitionKind::region, "of the parent");
          const uint64_t nbytes = header().definitions_nbytes;
          CHECK(nbytes > 0);
          Event& of_parent = recorder.operations().claim();
          of_parent.nbytes = 77;
          recorder.operations().publish(of_parent);
          CHECK(in_child([] {
                  CHECK(Recorder::instance().memory().residence == Residence::own);
                  CHECK(header().owner_pid == static_cast<uint32_t>(getpid()) && header().definitions_nbytes == 0);
                  Recorder& own = Recorder::instance();
                  CHECK(own.operations().next() == 0 && own.next_at_fork() == 1 && own.num_forks() == 1);
                  CHECK(own.operations_of_parent().find(0)->nbytes == 77);
                  own.operations().publish(own.operations().claim());
                }) == 0);
          CHECK(header().owner_pid == static_cast<uint32_t>(getpid()) && header().definitions_nbytes == nbytes);
          CHECK(recorder.operations().next() == 1 && files().size() == 1);
        }) == 0);
}

void test_the_memory_of_a_forked_child_can_outlive_it() {
  setenv(kRecorderKeepVariable, "1", 1);
  CHECK(in_child([] {
          Recorder::instance();
          CHECK(in_child([] {
                  CHECK(Recorder::instance().memory().residence == Residence::file && files().size() == 2);
                  CHECK(header().owner_pid == static_cast<uint32_t>(getpid()));
                }) == 0);
          CHECK(header().owner_pid == static_cast<uint32_t>(getpid()));
        }) == 0);
  unsetenv(kRecorderKeepVariable);
  CHECK(files().size() == 2);
  for (const std::string& name : files()) unlink((folder + "/" + name).c_str());
}

// The recorder's descriptor must not become the program's standard input.
void test_what_a_process_says_of_itself_when_it_ends() {
  setenv(kRecorderKeepVariable, "1", 1);
  setenv("SLURM_JOB_ID", "4711", 1);
  CHECK(in_child([] {
          const EndStatus& status = header().end_status;
          CHECK(status.monotonic_ns == 0);
          const std::string name(reinterpret_cast<const char*>(&header()) + header().definitions_offset +
                                 sizeof(DefinitionHeader));
          CHECK(name == "SLURM_JOB_ID=4711");
        }) == 0);
  const int64_t most_ns = now_ns();
  CHECK(files().size() == 1);
  const std::string path = folder + "/" + files()[0];
  RegionHeader saved{};
  const int fd = open(path.c_str(), O_RDONLY);
  CHECK(pread(fd, &saved, sizeof saved, 0) == sizeof saved && saved.has_ended == 1);
  close(fd);
  unlink(path.c_str());
  const EndStatus& status = saved.end_status;
  CHECK(saved.anchor.monotonic_ns < status.monotonic_ns && status.monotonic_ns < most_ns);
  CHECK(status.cpu_ns >= 0 && status.num_threads >= 1 && status.resident_nbytes > 0 && status.minor_faults > 0);
  CHECK(status.major_faults >= 0 && status.voluntary_switches >= 0 && status.forced_switches >= 0);
  CHECK(status.read_nbytes > 0 && status.written_nbytes >= 0 && status.device_written_nbytes >= 0);
  unsetenv("SLURM_JOB_ID");
  unsetenv(kRecorderKeepVariable);
}

void test_closed_standard_streams() {
  CHECK(in_child([] {
          for (int fd = 0; fd < 3; ++fd) close(fd);
          Recorder::instance();
          for (int fd = 0; fd < 3; ++fd) CHECK(fcntl(fd, F_GETFD) == -1);
          CHECK(in_child([] { CHECK(fcntl(0, F_GETFD) == -1 && fcntl(1, F_GETFD) == -1); }) == 0);
        }) == 0);
}

void test_memory_of_a_launcher() {
  const int fd = memfd_create("hocket-recorder", 0);
  setenv(kRecorderFdVariable, std::to_string(fd).c_str(), 1);
  for (int program = 0; program < 2; ++program)  // the second takes it over from the first, which has ended
    CHECK(in_child([program] {
            CHECK(Recorder::instance().memory().residence == Residence::inherited && files().empty());
            CHECK(header().definitions_nbytes == 0);
            Recorder::instance().define(DefinitionKind::region, program == 0 ? "first" : "second");
          }) == 0);
  void* base = mmap(nullptr, recorder_nbytes(), PROT_READ, MAP_SHARED, fd, 0);
  const auto* left = static_cast<const RegionHeader*>(base);
  const char* text = static_cast<const char*>(base) + left->definitions_offset + sizeof(DefinitionHeader);
  CHECK(left->has_ended == 1 && std::strcmp(text, "second") == 0);
  munmap(base, recorder_nbytes());

  for (const char* foreign : {"0", "999", "-1", "x", ""}) {  // standard input, and descriptors that there are not
    setenv(kRecorderFdVariable, foreign, 1);
    CHECK(in_child([] { CHECK(Recorder::instance().memory().residence == Residence::file); }) == 0);
  }
  unsetenv(kRecorderFdVariable);
  close(fd);
}

void test_a_folder_that_cannot_have_a_file() {
  setenv(kRecorderFolderVariable, "/no/such/folder", 1);
  CHECK(in_child([] {
          const RecorderMemory& memory = Recorder::instance().memory();
          CHECK(memory.residence == Residence::own && memory.reason.find("/no/such/folder") != std::string::npos);
        }) == 0);
  setenv(kRecorderFolderVariable, folder.c_str(), 1);
}

void test_off() {
  setenv(kRecorderVariable, "0", 1);
  CHECK(in_child([] {
          CHECK(!Recorder::instance().is_on() && files().empty());
          CHECK(Recorder::instance().define(DefinitionKind::region, "none") > 0);
        }) == 0);
  unsetenv(kRecorderVariable);
}

void test_names_that_find_no_room_are_counted() {
  CHECK(in_child([] {
          Recorder& recorder = Recorder::instance();
          const std::string name(1000, 'x');
          for (uint64_t i = 0; i < kDefinitionsNbytes / 1000 + 50; ++i) recorder.define(DefinitionKind::file, name);
          CHECK(header().definitions_dropped > 0 && header().definitions_nbytes <= header().definitions_capacity);
          CHECK(header().definitions_nbytes + 2000 > header().definitions_capacity);
        }) == 0);
}

// A handler that waited for its own thread would do so until the timer kills the child.
void test_names_of_a_signal_handler() {
  CHECK(in_child([] {
          Recorder& recorder = Recorder::instance();
          struct sigaction action{};
          action.sa_handler = [](int) { Recorder::instance().define(DefinitionKind::region, "of the handler"); };
          sigaction(SIGALRM, &action, nullptr);
          sigevent kill{};
          kill.sigev_notify = SIGEV_SIGNAL;
          kill.sigev_signo = SIGKILL;
          timer_t deadline{};
          const itimerspec in_60_s{{0, 0}, {60, 0}};
          CHECK(timer_create(CLOCK_MONOTONIC, &kill, &deadline) == 0);
          CHECK(timer_settime(deadline, 0, &in_60_s, nullptr) == 0);
          const itimerval every_50_us{{0, 50}, {0, 50}};
          setitimer(ITIMER_REAL, &every_50_us, nullptr);
          for (int i = 0; i < 2'000'000; ++i) recorder.define(DefinitionKind::region, "of the thread");
          const itimerval never{};
          setitimer(ITIMER_REAL, &never, nullptr);
        }) == 0);
}

}  // namespace

int main() {
  std::string name = "/tmp/hocket-recorder-test-XXXXXX";
  CHECK(mkdtemp(name.data()) != nullptr);
  folder = name;
  setenv(kRecorderFolderVariable, folder.c_str(), 1);
  test_one_writer_overwrites_the_oldest();
  test_many_writers();
  test_a_slot_that_a_writer_never_left();
  test_an_event_that_was_overwritten_is_not_changed();
  test_sampling_counts_what_it_leaves_out();
  test_sampling_does_not_follow_a_pattern();
  test_a_change_of_sampling_is_an_event();
  test_a_file_is_removed_at_a_normal_end();
  test_the_next_start_removes_the_file_of_a_killed_process();
  test_a_forked_child_has_memory_of_its_own();
  test_the_memory_of_a_forked_child_can_outlive_it();
  test_what_a_process_says_of_itself_when_it_ends();
  test_closed_standard_streams();
  test_memory_of_a_launcher();
  test_a_folder_that_cannot_have_a_file();
  test_off();
  test_names_that_find_no_room_are_counted();
  test_names_of_a_signal_handler();
  rmdir(folder.c_str());
}
