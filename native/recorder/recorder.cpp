#include "recorder/recorder.hpp"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/proc_file.hpp"
#include "recorder/end_status.hpp"

namespace hocket {

namespace {

constexpr size_t kMostText = 4096;  // of a definition

RecorderAnchor take_anchor() {
  timespec calendar{};
  clock_gettime(CLOCK_REALTIME, &calendar);
  const ClockAnchor now = ClockAnchor::take();
  return {now.ticks, now.ns, calendar.tv_sec * 1'000'000'000LL + calendar.tv_nsec};
}

template <size_t N>
void copy_text(std::array<char, N>& to, std::string_view from) {
  std::copy_n(from.data(), std::min(from.size(), N - 1), to.data());
}

template <size_t N>
void read_line(const char* path, std::array<char, N>& to) {
  const ProcText text = read_proc_file(path);
  copy_text(to, std::string_view(text.data(), std::strcspn(text.data(), "\n")));
}

// Program and arguments, with spaces between them, as far as there is room.
void read_command(std::array<char, 192>& to) {
  ProcText text = read_proc_file("/proc/self/cmdline");
  size_t length = text.size() - 1;
  while (length > 0 && text[length - 1] == '\0') --length;
  std::replace(text.begin(), text.begin() + static_cast<ptrdiff_t>(length), '\0', ' ');
  copy_text(to, std::string_view(text.data(), length));
}

std::atomic<Recorder*> g_recorder{nullptr};
std::atomic<Recorder*> g_shared{nullptr};

uint64_t budget_ppm() {
  constexpr double kPercent = 1, kPpmPerPercent = 1e4;
  const char* value = std::getenv(kRecorderBudgetVariable);
  if (!value || *value == '\0') return static_cast<uint64_t>(kPercent * kPpmPerPercent);
  if (std::strcmp(value, "all") == 0) return 0;
  const double percent = std::atof(value);
  const bool is_sane = percent > 0 && percent <= 100;
  return static_cast<uint64_t>(std::max((is_sane ? percent : kPercent) * kPpmPerPercent, 1.0));
}

int from_environment(const char* variable) {
  const char* value = std::getenv(variable);
  return value ? std::atoi(value) : -1;
}

}  // namespace

const char* recorder_build() { return HOCKET_VERSION " " __VERSION__; }

Recorder& Recorder::own() {
  static auto* recorder = new Recorder;  // NOLINT
  return *recorder;
}

void Recorder::share(Recorder* recorder) { g_shared.store(recorder, std::memory_order_release); }

Recorder& Recorder::instance() {
  static Recorder* const recorder = [] {
    if (Recorder* given = g_shared.load(std::memory_order_acquire)) return given;
    auto* shared = reinterpret_cast<SharedRecorder*>(dlsym(RTLD_DEFAULT, kSharedRecorderSymbol));
    Recorder* found = shared ? shared(recorder_build()) : nullptr;
    if (!found) return &own();
    g_recorder.store(found, std::memory_order_release);
    return found;
  }();
  return *recorder;
}

Recorder::Recorder() : memory_(open_recorder_memory(recorder_nbytes())) {
  if (!memory_.base) return;
  lay_out();
  g_recorder.store(this, std::memory_order_release);
  std::atexit(&Recorder::end_process);
  pthread_atfork(nullptr, nullptr, [] { g_recorder.load(std::memory_order_relaxed)->start_in_child(); });
}

void Recorder::lay_out() {
  auto* base = static_cast<std::byte*>(memory_.base);
  header_ = reinterpret_cast<RegionHeader*>(base);
  RegionHeader& header = *header_;
  header.schema = kRecorderSchema;
  header.header_nbytes = kHeaderNbytes;
  header.region_nbytes = recorder_nbytes();
  header.event_nbytes = sizeof(Event);
  header.num_rings = kNumFirstRings;
  header.histogram_nbytes = sizeof(Histogram);
  header.num_tables = kNumTables;
  header.owner_pid = static_cast<uint32_t>(getpid());
  header.pid_namespace = static_cast<uint32_t>(process_namespace());
  header.owner_started = start_of_process(getpid());
  header.owner_image = random_of_image();
#if defined(__x86_64__)
  header.ticks_are_tsc = kTscIsClock;
#endif
  read_line("/proc/sys/kernel/random/boot_id", header.boot_id);
  // A task of Slurm has a rank before the program says so; a batch script has none, and no step.
  const bool is_task = std::getenv("RANK") == nullptr && std::getenv("SLURM_STEP_ID") != nullptr;
  header.rank = from_environment(is_task ? "SLURM_PROCID" : "RANK");
  header.world_size = from_environment(is_task ? "SLURM_STEP_NUM_TASKS" : "WORLD_SIZE");
  gethostname(header.host.data(), header.host.size() - 1);
  read_command(header.program);
  header.anchor = take_anchor();

  uint64_t offset = kHeaderNbytes;
  header.definitions_offset = offset;
  header.definitions_capacity = kDefinitionsNbytes;
  offset += kDefinitionsNbytes;
  for (HistogramTable& table : header.tables) {
    table.offset = offset;
    table.capacity = kNumHistograms;
    offset += kNumHistograms * sizeof(Histogram);
  }
  for (size_t i = 0; i < kNumRings; ++i) {
    RingHeader& ring = header.ring(static_cast<RingId>(i));
    ring.offset = offset;
    ring.capacity = kRingCapacities[i];
    ring.most_cost_ppm = kMayBeSampled[i] ? budget_ppm() : 0;
    ring.window_begin = header.anchor.ticks;
    offset += kRingCapacities[i] * sizeof(Event);
  }
  RingHeader& operations = header.ring(RingId::operations);
  operations_ = SerialRing(&operations, reinterpret_cast<Event*>(base + operations.offset));
  HistogramTable& table = header.tables[0];
  histograms_ = SerialHistograms(&table, reinterpret_cast<Histogram*>(base + table.offset));
  SharedHistograms::prepare(&header.tables[1], reinterpret_cast<Histogram*>(base + header.tables[1].offset));
  uint32_t number = 0;
  for (const char* name : kRecordedVariables) {
    ++number;
    const char* value = std::getenv(name);
    if (!value) continue;
    std::array<char, kMostText> text{};  // a forked child allocates nothing here
    std::snprintf(text.data(), text.size(), "%s=%s", name, value);
    define(DefinitionKind::variable, text.data(), number);
  }
  std::atomic_ref(header.magic).store(kRecorderMagic, std::memory_order_release);
}

SharedRing Recorder::ring(RingId id) const {
  if (!header_) return {};
  RingHeader& ring = header_->ring(id);
  RingHeader& of_process = header_->ring(RingId::process);
  return SharedRing(&ring, events_of(ring), {&of_process, events_of(of_process), id});
}

Event* Recorder::events_of(const RingHeader& ring) const {
  return reinterpret_cast<Event*>(static_cast<std::byte*>(memory_.base) + ring.offset);
}

SharedHistograms Recorder::shared_histograms() const {
  if (!header_) return {};
  HistogramTable& table = header_->tables[1];
  return {&table, reinterpret_cast<Histogram*>(static_cast<std::byte*>(memory_.base) + table.offset)};
}

SerialRing Recorder::operations_of_parent() const {
  if (!memory_.of_parent) return {};
  auto* base = static_cast<std::byte*>(memory_.of_parent);
  RingHeader& ring = reinterpret_cast<RegionHeader*>(base)->ring(RingId::operations);
  return {&ring, reinterpret_cast<Event*>(base + ring.offset)};
}

void Recorder::start_in_child() {
  if (!header_) return;
  if (num_forks_++ == 0) next_at_fork_ = operations_.next();
  replace_in_child(memory_, recorder_nbytes());
  next_id_ = 1;
  new (&definitions_mutex_) std::mutex;  // another thread of the parent may have held it
  lay_out();
}

void Recorder::set_rank(int rank, int world_size) {
  if (!header_) return;
  header_->world_size = world_size;
  header_->rank = rank;
}

uint32_t Recorder::define(DefinitionKind kind, std::string_view text, uint32_t id, uint16_t number, int32_t extra) {
  if (id == 0) id = next_id_.fetch_add(1, std::memory_order_relaxed);
  if (!header_) return id;
  // A signal handler that opens a file while its own thread is in here would wait for itself: its name is left out.
  static thread_local bool t_is_defining = false;
  if (t_is_defining) {
    std::atomic_ref(header_->definitions_dropped).fetch_add(1, std::memory_order_relaxed);
    return id;
  }
  t_is_defining = true;
  add_definition(kind, text.substr(0, kMostText), id, number, extra);
  t_is_defining = false;
  return id;
}

void Recorder::add_definition(DefinitionKind kind, std::string_view text, uint32_t id, uint16_t number, int32_t extra) {
  const std::lock_guard guard(definitions_mutex_);
  const size_t nbytes = sizeof(DefinitionHeader) + (text.size() + 7) / 8 * 8;
  const uint64_t used = header_->definitions_nbytes;
  if (used + nbytes > header_->definitions_capacity) {
    std::atomic_ref(header_->definitions_dropped).fetch_add(1, std::memory_order_relaxed);
    return;
  }
  std::byte* at = static_cast<std::byte*>(memory_.base) + header_->definitions_offset + used;
  const DefinitionHeader definition{static_cast<uint32_t>(text.size()), static_cast<uint16_t>(kind), number, id, extra};
  std::memcpy(at, &definition, sizeof definition);
  std::memcpy(at + sizeof definition, text.data(), text.size());
  std::atomic_ref(header_->definitions_nbytes).store(used + nbytes, std::memory_order_release);
}

uint16_t thread_number() {
  static thread_local uint32_t t_num_forks = ~0u;  // a forked child has a recorder without definitions
  static thread_local uint16_t t_number = 0;
  Recorder& recorder = Recorder::instance();
  if (t_num_forks != recorder.num_forks()) {
    t_num_forks = recorder.num_forks();
    const auto tid = static_cast<int32_t>(syscall(SYS_gettid));
    t_number = static_cast<uint16_t>(recorder.define(DefinitionKind::thread, "", 0, 0, tid));
  }
  return t_number;
}

void Recorder::end_process() {
  if (Recorder* recorder = g_recorder.load(std::memory_order_acquire)) recorder->end();
}

void Recorder::end() {
  // The child of a vfork() has the memory of its parent, and ends by _exit() if it becomes no other program.
  if (!header_ || header_->owner_pid != static_cast<uint32_t>(getpid())) return;
  if (keeps_recorder_files()) read_end_status(header_->end_status);
  header_->has_ended = 1;
  if (memory_.residence == Residence::file && !keeps_recorder_files()) unlink(memory_.path.c_str());
}

}  // namespace hocket
