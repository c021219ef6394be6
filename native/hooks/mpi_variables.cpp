#include "hooks/mpi_variables.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <mutex>
#include <string>
#include <vector>

#include "hooks/hooks.hpp"

namespace hocket::hooks {

namespace {

constexpr int64_t kLeastIntervalNs = 100'000'000;
constexpr int64_t kMostCostShare = 100;  // a reading takes at most one part in so many of the time
// All elements of all variables: half of what the ring holds. Variables of large communicators are left out.
constexpr size_t kMostElements = 2048;
constexpr int kMostVariables = 1024;
constexpr int kThreadMultiple = 3;  // MPI_THREAD_MULTIPLE of both libraries
constexpr size_t kMostName = 256;

struct ToolInterface {
  int (*init_thread)(int required, int* provided) = nullptr;
  int (*finalize)() = nullptr;
  int (*query_thread)(int* provided) = nullptr;
  int (*session_create)(void** session) = nullptr;
  int (*session_free)(void** session) = nullptr;
  int (*get_num)(int* count) = nullptr;
  int (*get_info)(int index, char* name, int* name_length, int* verbosity, int* variable_class, Handle* type,
                  void** enumeration, char* text, int* text_length, int* bind, int* is_read_only, int* is_continuous,
                  int* is_atomic) = nullptr;
  int (*handle_alloc)(void* session, int index, const void* object, void** handle, int* count) = nullptr;
  int (*handle_free)(void* session, void** handle) = nullptr;
  int (*start)(void* session, void* handle) = nullptr;
  int (*read)(void* session, void* handle, void* values) = nullptr;

  // Whether the library has all of them.
  bool find_in(const HookedMpi& mpi) {
    const auto get = [&]<typename Function>(Function& function, const char* name) {
      function = reinterpret_cast<Function>(mpi.find(name));
      return function != nullptr;
    };
    return get(init_thread, "PMPI_T_init_thread") && get(finalize, "PMPI_T_finalize") &&
           get(query_thread, "PMPI_Query_thread") && get(session_create, "PMPI_T_pvar_session_create") &&
           get(session_free, "PMPI_T_pvar_session_free") && get(get_num, "PMPI_T_pvar_get_num") &&
           get(get_info, "PMPI_T_pvar_get_info") && get(handle_alloc, "PMPI_T_pvar_handle_alloc") &&
           get(handle_free, "PMPI_T_pvar_handle_free") && get(start, "PMPI_T_pvar_start") &&
           get(read, "PMPI_T_pvar_read");
  }
};

struct Variable {
  void* handle;
  uint32_t id;  // of its definition
  DType dtype;
  size_t first;  // of its elements in `values_`
  size_t count;
  bool is_new = true;
};

size_t nbytes_of(DType dtype) { return dtype == DType::int32 || dtype == DType::uint32 ? 4 : 8; }

template <typename T>
double element(const std::byte* values, size_t index) {
  T value;
  std::memcpy(&value, values + index * sizeof value, sizeof value);
  return static_cast<double>(value);
}

double element(DType dtype, const std::byte* values, size_t index) {
  switch (dtype) {
    case DType::int32:
      return element<int32_t>(values, index);
    case DType::uint32:
      return element<uint32_t>(values, index);
    case DType::int64:
      return element<int64_t>(values, index);
    case DType::uint64:
      return element<uint64_t>(values, index);
    default:
      return element<double>(values, index);
  }
}

bool is_number(DType dtype) {
  constexpr std::array kNumbers = {DType::int32, DType::uint32, DType::int64, DType::uint64, DType::float64};
  return std::find(kNumbers.begin(), kNumbers.end(), dtype) != kNumbers.end();
}

// A child of fork() never touches it: MPI is not usable there, and another thread may have held the lock.
class Variables {
 public:
  void start(const HookedMpi& mpi) {
    const std::lock_guard guard(mutex_);
    if (mpi_ || mpi.constants().first_variable_class < 0 || !tool_.find_in(mpi)) return;
    mpi_ = &mpi;
    process_ = getpid();
    ring_ = Recorder::instance().ring(RingId::process);
    count_id_ = define("num_variables");
    is_open_ = open();
    read();
    if (!is_open_) return;
    static const int handler = pthread_atfork(nullptr, nullptr, [] { g_next_reading = UINT64_MAX; });
    static_cast<void>(handler);
    g_next_reading = ticks() + kLeastWindowTicks;
  }

  void read_if_due() {
    const std::unique_lock guard(mutex_, std::try_to_lock);
    if (!guard.owns_lock() || !is_open_) return;
    const int64_t began_ns = now_ns();
    if (began_ns >= next_ns_) {
      read();
      next_ns_ = began_ns + std::max(kLeastIntervalNs, (now_ns() - began_ns) * kMostCostShare);
    }
    // Ticks are faster than nanoseconds at an unknown rate, so that the time is asked again now and then.
    g_next_reading = ticks() + kLeastWindowTicks;
  }

  void stop() {
    if (process_ != getpid()) return;
    const std::lock_guard guard(mutex_);
    g_next_reading = UINT64_MAX;
    if (!is_open_) return;
    read();
    is_open_ = false;
    for (Variable& each : variables_) tool_.handle_free(session_, &each.handle);
    tool_.session_free(&session_);
    tool_.finalize();
  }

 private:
  static uint32_t define(const std::string& name) {
    return Recorder::instance().define(DefinitionKind::counter, "mpi_t:" + name);
  }

  // MPI_T counts how often it was started, so the program's own use of it does not end with this one.
  bool open() {
    int provided = 0;
    int of_mpi = kThreadMultiple;
    if (tool_.init_thread(kThreadMultiple, &provided) != 0) return false;
    const bool is_safe = tool_.query_thread(&of_mpi) == 0 && provided >= of_mpi;
    if (is_safe && tool_.session_create(&session_) == 0) return true;
    tool_.finalize();
    return false;
  }

  // Variables may be added while the program runs; those that are there keep their numbers.
  void bind_new() {
    int num_variables = 0;
    if (tool_.get_num(&num_variables) != 0) return;
    for (; num_seen_ < std::min(num_variables, kMostVariables); ++num_seen_) bind(num_seen_);
  }

  void bind(int index) {
    const MpiConstants& constants = mpi_->constants();
    char name[kMostName] = "";
    int name_length = kMostName;
    char text[1] = "";
    int text_length = sizeof text;
    Handle type = 0;
    void* enumeration = nullptr;
    int verbosity = 0;
    int variable_class = -1;
    int bound_to = -1;
    int is_read_only = 0;
    int is_continuous = 0;
    int is_atomic = 0;
    if (tool_.get_info(index, name, &name_length, &verbosity, &variable_class, &type, &enumeration, text, &text_length,
                       &bound_to, &is_read_only, &is_continuous, &is_atomic) != 0)
      return;
    // States and what has no meaning of its own are the first and the last class.
    constexpr int kLastNumber = 8;
    variable_class -= constants.first_variable_class;
    const auto dtype = mpi_->dtype(type);
    const bool is_of_world = bound_to == constants.bind_to_communicator;
    if (variable_class < 1 || variable_class > kLastNumber || !dtype || !is_number(*dtype) ||
        !(is_of_world || bound_to == constants.bind_to_nothing))
      return;
    Variable variable{.handle = nullptr, .id = 0, .dtype = *dtype, .first = values_.size(), .count = 0};
    const Handle world = mpi_->world();
    int count = 0;
    if (tool_.handle_alloc(session_, index, is_of_world ? &world : nullptr, &variable.handle, &count) != 0) return;
    if (count < 1 || values_.size() + static_cast<size_t>(count) > kMostElements) {
      tool_.handle_free(session_, &variable.handle);
      return;
    }
    if (!is_continuous) tool_.start(session_, variable.handle);
    variable.count = static_cast<size_t>(count);
    variable.id = define(name);
    values_.resize(values_.size() + variable.count, 0);
    variables_.push_back(variable);
  }

  void read() {
    const int error = errno;
    const size_t num_before = variables_.size();
    if (is_open_) bind_new();
    if (num_before != variables_.size() || !has_count_)
      record(count_id_, 0, static_cast<double>(variables_.size()), ticks());
    has_count_ = true;
    for (Variable& each : variables_) read(each);
    errno = error;
  }

  // A number is recorded at the first reading and when it has changed; elements of arrays are 0 before the first one.
  void read(Variable& variable) {
    buffer_.resize(std::max(buffer_.size(), variable.count * nbytes_of(variable.dtype)));
    if (tool_.read(session_, variable.handle, buffer_.data()) != 0) return;
    const uint64_t now = ticks();
    for (size_t i = 0; i < variable.count; ++i) {
      const double value = element(variable.dtype, buffer_.data(), i);
      double& before = values_[variable.first + i];
      if (std::bit_cast<uint64_t>(value) == std::bit_cast<uint64_t>(before) &&
          !(variable.is_new && variable.count == 1))
        continue;
      before = value;
      record(variable.id, i, value, now);
    }
    variable.is_new = false;
  }

  void record(uint32_t id, size_t index, double value, uint64_t now) {
    Event event{};
    event.t_begin = event.t_end = now;
    event.aux = std::bit_cast<uint64_t>(value);
    event.seq = static_cast<uint32_t>(index);
    event.comm = id;
    event.peer = -1;
    event.thread = thread_number();
    event.kind = static_cast<uint8_t>(ProcessKind::counter);
    event.reduce = kNoReduction;
    event.layer = Layer::process;
    event.state = EventState::completed;
    ring_.add(event);
  }

  std::mutex mutex_;
  const HookedMpi* mpi_ = nullptr;
  pid_t process_ = 0;
  ToolInterface tool_;
  SharedRing ring_;
  void* session_ = nullptr;
  bool is_open_ = false;
  bool has_count_ = false;
  int num_seen_ = 0;
  uint32_t count_id_ = 0;
  int64_t next_ns_ = 0;
  std::vector<Variable> variables_;
  std::vector<double> values_;  // as they were last recorded
  std::vector<std::byte> buffer_;
};

Variables& variables() {
  static auto* made = new Variables;  // NOLINT: threads may use it until the process ends
  return *made;
}

}  // namespace

void start_variables(const HookedMpi& mpi) { variables().start(mpi); }
void stop_variables() { variables().stop(); }
void read_variables() { variables().read_if_due(); }

}  // namespace hocket::hooks
