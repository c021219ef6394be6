// One call of an MPI function through its hook: the original, and the event that stands for it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "core/clock.hpp"
#include "hooks/hooks.hpp"
#include "hooks/mpi_communicators.hpp"
#include "hooks/mpi_library.hpp"
#include "hooks/mpi_variables.hpp"
#include "hooks/of_this_process.hpp"
#include "hooks/open_event.hpp"

namespace hocket::hooks {

// Whether the variable HOCKET_OBSERVE, a list with commas, names this layer.
bool observes(Layer layer);

// The original of a hook in each library. `narrow_name` is the same function with counts of type int.
struct HookedFunction {
  const char* name;
  const char* narrow_name = nullptr;
  std::array<std::atomic<void*>, kMostLibraries> found{};
  std::array<std::atomic<void*>, kMostLibraries> narrow_found{};
};

// Arrays of counts that a library without the functions ending in _c reads until its operation ends.
using NarrowArrays = std::vector<std::unique_ptr<int[]>>;

// Passes on the arguments of a function that ends in _c to one with counts of type int.
class Narrowing {
 public:
  Narrowing(const std::array<int, 4>& lengths, std::shared_ptr<NarrowArrays>& arrays)
      : lengths_(lengths), arrays_(arrays) {}
  bool is_exact() const { return is_exact_; }

  template <typename T>
  T operator()(T argument) {
    return argument;
  }
  int operator()(LargeCount count) { return narrow(static_cast<int64_t>(count)); }
  const int* operator()(const LargeCount* counts) { return narrow_array(counts); }
  const int* operator()(const LargeDisplacement* displacements) { return narrow_array(displacements); }

 private:
  int narrow(int64_t value) {
    is_exact_ = is_exact_ && value == static_cast<int>(value);
    return static_cast<int>(value);
  }
  template <typename T>
  const int* narrow_array(const T* values) {
    const auto length = static_cast<size_t>(lengths_[num_arrays_++]);
    if (!values || length == 0) return nullptr;
    if (!arrays_) arrays_ = std::make_shared<NarrowArrays>();
    auto& array = arrays_->emplace_back(new int[length]);
    for (size_t i = 0; i < length; ++i) array[i] = narrow(static_cast<int64_t>(values[i]));
    return array.get();
  }

  const std::array<int, 4>& lengths_;
  std::shared_ptr<NarrowArrays>& arrays_;
  size_t num_arrays_ = 0;
  bool is_exact_ = true;
};

struct OpenOperation;

// What the hook of a function knows of its operation.
struct MpiOperation {
  uint8_t kind = 0;
  uint64_t nbytes = 0;
  Handle type = 0;
  int32_t peer = -1;
  uint64_t tag = 0;
  uint8_t reduce = kNoReduction;
  uint8_t flags = 0;
  bool is_message = false;
  bool is_receive = false;  // its status says how many bytes came, and from whom
  std::shared_ptr<KnownGroup> group;
};

class MpiCall {
 public:
  MpiCall(HookedFunction& function, const void* caller, Layer layer = Layer::communication);
  ~MpiCall() {
    if (is_recorded_) read_variables_if_due();
    t_is_inside = was_inside_;
  }
  MpiCall(const MpiCall&) = delete;
  MpiCall& operator=(const MpiCall&) = delete;

  HookedMpi& mpi() const { return *mpi_; }
  bool is_recorded() const { return is_recorded_; }
  // Also inside another call: MPI runs functions of the program, which may free its objects.
  bool may_free() const { return mpi_ && observes(Layer::communication); }
  // The program calls MPI, not MPI itself.
  bool is_outermost() const { return mpi_ && !was_inside_; }
  // Until the call ends, hooks record nothing else in this thread.
  void enter() { t_is_inside = true; }

  template <typename... A>
  int operator()(A... arguments) {
    if (original_) return reinterpret_cast<int (*)(A...)>(original_)(arguments...);
    if (!narrow_original_) return mpi_ ? mpi_->constants().unsupported_error : kUnsupportedEverywhere;
    return call_narrow(arguments...);
  }
  // For an original that has arrays of counts and is called without the function that ends in _c.
  bool is_narrowed() const { return !original_ && narrow_original_; }
  void set_lengths(const std::array<int, 4>& lengths) { lengths_ = lengths; }

  // Records an operation that begins now; `sent` is the other half of an exchange.
  void begin(MpiOperation operation, uint8_t flags = 0);
  void begin_sent(const MpiOperation& sent, uint8_t flags = 0);
  // It has ended, with a status if it has one.
  int end(int code, const void* status = nullptr);
  // It ends when its request is complete.
  int follow(int code, const void* request);
  // Each start of the request will be such an operation.
  int plan(int code, const void* request, MpiOperation operation);

  // What operations are made of.
  template <typename C>
  uint64_t nbytes(C count, Handle type) const {
    const auto number = static_cast<int64_t>(count);
    return number > 0 ? static_cast<uint64_t>(number * mpi_->type_nbytes(type)) : 0;
  }
  template <typename C>
  uint64_t sum_nbytes(const C* counts, int length, Handle type) const {
    int64_t sum = 0;
    for (int i = 0; counts && i < length; ++i) sum += static_cast<int64_t>(counts[i]);
    return nbytes(sum, type);
  }
  template <typename C>
  uint64_t sum_nbytes(const C* counts, int length, const void* types) const {
    uint64_t sum = 0;
    for (int i = 0; counts && types && i < length; ++i)
      sum += nbytes(counts[i], mpi_->handle_at(types, static_cast<size_t>(i)));
    return sum;
  }
  template <typename Kind>
  MpiOperation message(Kind kind, uint64_t nbytes, Handle type, int peer, int tag, Handle comm) const {
    MpiOperation operation = operation_of(kind, nbytes, type, communicator_of(*mpi_, comm));
    operation.peer = peer_of(peer);
    if (operation.peer == kProcNull) operation.nbytes = 0;
    operation.tag = static_cast<uint32_t>(tag);
    operation.is_message = true;
    operation.is_receive = operation.kind == static_cast<uint8_t>(OpKind::recv);
    return operation;
  }
  template <typename Kind>
  MpiOperation operation_of(Kind kind, uint64_t nbytes, Handle type, std::shared_ptr<KnownGroup> group) const {
    MpiOperation operation;
    operation.kind = static_cast<uint8_t>(kind);
    operation.nbytes = nbytes;
    operation.type = type;
    operation.group = std::move(group);
    return operation;
  }
  int32_t peer_of(int peer) const {
    if (peer == mpi_->constants().proc_null) return kProcNull;
    return peer == mpi_->constants().any_source ? -1 : peer;
  }

 private:
  OpenOperation opened();
  static constexpr int kUnsupportedEverywhere = 16;

  template <typename... A>
  int call_narrow(A... arguments) {
    Narrowing narrow(lengths_, arrays_);
    std::tuple narrowed{narrow(arguments)...};  // in this order
    if (!narrow.is_exact()) return kCountError;
    return std::apply(
        [this]<typename... B>(B... each) { return reinterpret_cast<int (*)(B...)>(narrow_original_)(each...); },
        narrowed);
  }

  HookedMpi* mpi_;
  void* original_ = nullptr;
  void* narrow_original_ = nullptr;
  bool was_inside_;
  bool is_recorded_;
  bool is_receive_ = false;
  bool is_to_nobody_ = false;
  OpenEvent event_;
  OpenEvent sent_;
  std::array<int, 4> lengths_{};
  std::shared_ptr<NarrowArrays> arrays_;
};

// A status for a call whose caller ignores it.
class StatusOf {
 public:
  StatusOf(const MpiCall& call, void* given) : used_(given) {
    if (call.is_recorded() && call.mpi().is_ignored(given)) used_ = own_.data();
  }
  void* used() { return used_; }

 private:
  alignas(8) std::array<std::byte, kMostStatusNbytes> own_{};
  void* used_;
};

}  // namespace hocket::hooks

// A hook is one line of these. `P` and `A` are the parameters (a macro of the types of counts and displacements) and
// the arguments (in parentheses); what follows describes the operation, and is evaluated only if it is recorded.
#define HOCKET_MPI_LIST(...) __VA_ARGS__
#define HOCKET_MPI_CALL(symbol, narrow)                                             \
  static constinit hocket::hooks::HookedFunction function{"PMPI_" #symbol, narrow}; \
  hocket::hooks::MpiCall call(function, __builtin_return_address(0))

#define HOCKET_MPI_BLOCKING(symbol, narrow, C, D, P, A, lengths, ...) \
  HOCKET_HOOK int MPI_##symbol(P(C, D)) {                             \
    HOCKET_MPI_CALL(symbol, narrow);                                  \
    if (call.is_narrowed()) call.set_lengths(lengths);                \
    if (call.is_recorded()) call.begin(__VA_ARGS__);                  \
    return call.end(call(HOCKET_MPI_LIST A));                         \
  }
#define HOCKET_MPI_NONBLOCKING(symbol, narrow, C, D, P, A, lengths, ...)  \
  HOCKET_HOOK int MPI_##symbol(P(C, D), void* request) {                  \
    HOCKET_MPI_CALL(symbol, narrow);                                      \
    if (call.is_narrowed()) call.set_lengths(lengths);                    \
    if (call.is_recorded()) call.begin(__VA_ARGS__, hocket::kEventAsync); \
    return call.follow(call(HOCKET_MPI_LIST A, request), request);        \
  }
#define HOCKET_MPI_PERSISTENT(symbol, narrow, C, D, P, A, lengths, ...)                                  \
  HOCKET_HOOK int MPI_##symbol(P(C, D), hocket::hooks::Handle info, void* request) {                     \
    HOCKET_MPI_CALL(symbol, narrow);                                                                     \
    if (call.is_narrowed()) call.set_lengths(lengths);                                                   \
    const int code = call(HOCKET_MPI_LIST A, info, request);                                             \
    return call.plan(code, request, call.is_recorded() ? (__VA_ARGS__) : hocket::hooks::MpiOperation{}); \
  }

// The function with counts of type int, and the one with large counts.
#define HOCKET_MPI_SIZED(form, symbol, P, A, lengths, ...)                                                          \
  HOCKET_MPI_##form(symbol, nullptr, int, int, P, A, lengths, __VA_ARGS__);                                         \
  HOCKET_MPI_##form(symbol##_c, "PMPI_" #symbol, hocket::hooks::LargeCount, hocket::hooks::LargeDisplacement, P, A, \
                    lengths, __VA_ARGS__)
#define HOCKET_MPI_NO_LENGTHS (std::array<int, 4>{})
