#include "hooks/nccl_recorder.hpp"

#include <array>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "core/types.hpp"
#include "hooks/hooks.hpp"

namespace hocket::hooks::nccl {

namespace {

// A handle is a number and what it is of: an operation, or one of its channels.
constexpr int kNumberShift = 16;
constexpr Handle kChannelBit = 0x100;

// Handed over so many batches later, an operation cannot be in flight: the device has ended a later one,
constexpr uint64_t kMostBatchesBehind = 8;
// or a host would have had to wait.
constexpr uint64_t kMostBatchesAhead = 1024;

template <typename Kind>
constexpr uint8_t number(Kind kind) {
  return static_cast<uint8_t>(kind);
}

struct NcclFunction {
  std::string_view name;
  uint8_t kind;
};
constexpr std::array kFunctions = {
    NcclFunction{"AllReduce", number(OpKind::all_reduce)},
    NcclFunction{"Broadcast", number(OpKind::broadcast)},
    NcclFunction{"Reduce", number(OpKind::reduce)},
    NcclFunction{"AllGather", number(OpKind::all_gather)},
    NcclFunction{"AllGatherV", number(OpKind::all_gatherv)},
    NcclFunction{"ReduceScatter", number(OpKind::reduce_scatter)},
    NcclFunction{"AlltoAll", number(OpKind::all_to_all)},
    NcclFunction{"Gather", number(OpKind::gather)},
    NcclFunction{"Scatter", number(OpKind::scatter)},
    NcclFunction{"Send", number(OpKind::send)},
    NcclFunction{"Recv", number(OpKind::recv)},
    NcclFunction{"PutSignal", number(ForeignKind::put)},
};

struct NcclType {
  std::string_view name;
  DType dtype;
};
// NCCL has no name for its type of unsigned bytes, and calls it unknown.
constexpr std::array kTypes = {
    NcclType{"ncclInt8", DType::int8},         NcclType{"ncclUint8", DType::uint8},
    NcclType{"Unknown", DType::uint8},         NcclType{"ncclInt32", DType::int32},
    NcclType{"ncclUint32", DType::uint32},     NcclType{"ncclInt64", DType::int64},
    NcclType{"ncclUint64", DType::uint64},     NcclType{"ncclFloat16", DType::float16},
    NcclType{"ncclFloat32", DType::float32},   NcclType{"ncclFloat64", DType::float64},
    NcclType{"ncclBfloat16", DType::bfloat16}, NcclType{"ncclFloat8e4m3", DType::uint8},
    NcclType{"ncclFloat8e5m2", DType::uint8},
};

std::string_view text_of(const char* text) { return text ? text : ""; }

uint8_t kind_of(std::string_view name) {
  for (const NcclFunction& each : kFunctions)
    if (each.name == name) return each.kind;
  return number(ForeignKind::other);
}

DType dtype_of(std::string_view name) {
  for (const NcclType& each : kTypes)
    if (each.name == name) return each.dtype;
  return DType::uint8;
}

bool has_root(uint8_t kind) {
  return kind == number(OpKind::broadcast) || kind == number(OpKind::reduce) || kind == number(OpKind::gather) ||
         kind == number(OpKind::scatter);
}

// How many blocks of `count` items this rank contributes.
size_t num_blocks(uint8_t kind, int num_ranks, bool is_root) {
  const auto all = static_cast<size_t>(num_ranks);
  if (kind == number(OpKind::reduce_scatter) || kind == number(OpKind::all_to_all)) return all;
  if (kind == number(OpKind::scatter)) return is_root ? all : 0;
  return 1;
}

}  // namespace

NcclRecorder::NcclRecorder() : is_on_(observes("comm") && Recorder::instance().is_on()) {
  if (is_on_) operations_ = std::make_unique<std::array<Operation, kMostOpen>>();
}

Handle NcclRecorder::add_communicator(const char* name, uint64_t hash, int num_ranks, int rank) {
  if (!is_on_) return kNoHandle;
  constexpr size_t kMostName = 256;
  std::array<char, 24> number_text{};
  std::snprintf(number_text.data(), number_text.size(), "0x%llx", static_cast<unsigned long long>(hash));
  std::string label = "NCCL ";
  if (name && *name) label += std::string(name, strnlen(name, kMostName)) + ' ';
  label += number_text.data();  // the same on all ranks
  Recorder& recorder = Recorder::instance();
  const std::lock_guard guard(mutex_);
  const Handle handle = next_communicator_++;
  Communicator& communicator = communicators_[handle];
  communicator.id = recorder.define(DefinitionKind::communicator, label, 0, 0, rank);
  communicator.num_ranks = num_ranks;
  recorder.define(DefinitionKind::backend, "nccl", communicator.id);
  return handle;
}

void NcclRecorder::remove_communicator(Handle handle) {
  if (!is_on_) return;
  const uint64_t now = ticks();
  const std::lock_guard guard(mutex_);
  const auto found = communicators_.find(handle);
  if (found == communicators_.end()) return;
  const EventState state = found->second.has_kernel_events ? EventState::failed : EventState::completed;
  for (uint64_t each = oldest_; each < next_number_; ++each)
    if (Operation* operation = find(each); operation && operation->communicator == handle)
      end(*operation, operation->has_kernel_events ? state : EventState::completed, now, kEventEndUnknown);
  communicators_.erase(found);
}

Handle NcclRecorder::start(Handle handle, uint64_t type, const EventDescriptor& descriptor) {
  if (!is_on_) return kNoHandle;
  const bool is_message = type == kMessage;
  if (type == kKernelChannel)
    return start_channel(reinterpret_cast<Handle>(descriptor.parent), descriptor.kernel_channel.channel);
  if (type != kCollective && type != kCopyEngineCollective && !is_message) return kNoHandle;
  const std::lock_guard guard(mutex_);
  const auto found = communicators_.find(handle);
  if (found == communicators_.end()) return kNoHandle;
  Communicator& communicator = found->second;
  Event event = event_of(communicator, descriptor, is_message);
  size_t num_channels = 0;
  if (is_message) num_channels = descriptor.message.num_channels;
  if (type == kCollective) {
    num_channels = descriptor.collective.num_channels;
    event.algorithm = algorithm_of(communicator, descriptor.collective.algorithm, descriptor.collective.protocol);
  }
  const Handle started = start_operation(handle, event, num_channels);
  if (type == kCopyEngineCollective) find(started >> kNumberShift)->has_kernel_events = false;
  return started;
}

void NcclRecorder::stop(Handle handle) {
  if (!is_on_ || handle == kNoHandle) return;
  const uint64_t number = handle >> kNumberShift;
  if (handle & kChannelBit) return stop_channel(number, static_cast<uint8_t>(handle));
  const std::lock_guard guard(mutex_);
  Operation* operation = find(number);
  if (!operation) return;
  operation->is_handed_over = true;
  if (const auto found = communicators_.find(operation->communicator); found != communicators_.end())
    found->second.is_batch_stopped = true;
  end_if_over(*operation);
}

Event NcclRecorder::event_of(Communicator& communicator, const EventDescriptor& descriptor, bool is_message) {
  const auto& collective = descriptor.collective;
  const auto& message = descriptor.message;
  Event event{};
  event.kind = kind_of(text_of(is_message ? message.function : collective.function));
  const DType dtype = dtype_of(text_of(is_message ? message.datatype : collective.datatype));
  const size_t count = is_message ? message.count : collective.count;
  const bool is_root = !is_message && collective.root == descriptor.rank;
  event.nbytes = count * itemsize(dtype) * num_blocks(event.kind, communicator.num_ranks, is_root);
  event.dtype = number(dtype);
  event.peer = is_message ? message.peer : has_root(event.kind) ? collective.root : -1;
  event.seq = ++(is_message ? communicator.num_messages : communicator.num_collectives);
  event.comm = communicator.id;
  event.thread = thread_number();
  event.reduce = kNoReduction;
  event.flags = kEventAsync;
  event.layer = Layer::communication;
  event.state = EventState::issued;
  event.t_begin = ticks();
  return event;
}

Handle NcclRecorder::start_operation(Handle handle, Event event, size_t num_channels) {
  Communicator& communicator = communicators_[handle];
  if (communicator.is_batch_stopped) {
    ++communicator.batch;
    communicator.is_batch_stopped = false;
    if (!communicator.has_kernel_events && communicator.batch > kMostBatchesAhead)
      end_overdue(handle, communicator.batch - kMostBatchesAhead);
  }
  Operation& operation = (*operations_)[next_number_ % kMostOpen];
  if (operation.number != 0) end(operation, EventState::completed, ticks(), kEventEndUnknown);
  operation = Operation{};
  operation.number = next_number_++;
  operation.communicator = handle;
  operation.batch = communicator.batch;
  operation.num_channels = num_channels;
  operation.open = begin_event(event);
  return operation.number << kNumberShift;
}

Handle NcclRecorder::start_channel(Handle parent, uint8_t channel) {
  if (parent == kNoHandle || (parent & kChannelBit)) return kNoHandle;
  const uint64_t now = ticks();
  const std::lock_guard guard(mutex_);
  Operation* operation = find(parent >> kNumberShift);
  if (!operation) return kNoHandle;
  if (const auto found = communicators_.find(operation->communicator); found != communicators_.end())
    found->second.has_kernel_events = true;
  if (operation->begun.none()) {
    operation->open.event.aux = now;
    Recorder::instance().ring(operation->open.ring).update(operation->open.index, [now](Event& event) {
      event.aux = now;
      event.state = EventState::started;
    });
  }
  operation->begun.set(channel);
  return parent | kChannelBit | channel;
}

void NcclRecorder::stop_channel(uint64_t number, uint8_t channel) {
  const uint64_t now = ticks();
  const std::lock_guard guard(mutex_);
  Operation* operation = find(number);
  if (!operation || !operation->begun.test(channel)) return;
  operation->ended.set(channel);
  operation->last_end = now;
  end_if_over(*operation);
}

NcclRecorder::Operation* NcclRecorder::find(uint64_t number) {
  Operation& operation = (*operations_)[number % kMostOpen];
  return number != 0 && operation.number == number ? &operation : nullptr;
}

void NcclRecorder::end_if_over(Operation& operation) {
  if (!operation.is_handed_over) return;
  if (!operation.has_kernel_events) return end(operation, EventState::completed, ticks(), kEventEndUnknown);
  const size_t expected = operation.num_channels ? operation.num_channels : operation.begun.count();
  if (expected == 0 || operation.ended.count() < expected) return;
  const Handle communicator = operation.communicator;
  const uint64_t batch = operation.batch;
  end(operation, EventState::completed, operation.last_end);
  if (batch > kMostBatchesBehind) end_overdue(communicator, batch - kMostBatchesBehind);
}

// Ends what a communicator has in flight of batches before this one.
void NcclRecorder::end_overdue(Handle communicator, uint64_t batch) {
  const uint64_t now = ticks();
  for (uint64_t each = oldest_; each < next_number_; ++each) {
    Operation* operation = find(each);
    if (!operation || operation->communicator != communicator) continue;
    if (operation->batch >= batch) break;
    end(*operation, EventState::completed, now, kEventEndUnknown);
  }
}

void NcclRecorder::end(Operation& operation, EventState state, uint64_t now, uint8_t flags) {
  operation.open.event.flags |= flags;
  end_event(operation.open, state, now);
  operation.number = 0;
  while (oldest_ < next_number_ && !find(oldest_)) ++oldest_;
}

uint16_t NcclRecorder::algorithm_of(Communicator& communicator, const char* algorithm, const char* protocol) {
  std::string name(text_of(algorithm));
  if (protocol && *protocol) name += std::string(name.empty() ? "" : " ") + protocol;
  if (name.empty()) return 0;
  const auto next = static_cast<uint16_t>(communicator.algorithms.size() + 1);
  const auto [found, is_new] = communicator.algorithms.emplace(std::move(name), next);
  if (is_new) Recorder::instance().define(DefinitionKind::algorithm, found->first, communicator.id, next);
  return found->second;
}

}  // namespace hocket::hooks::nccl
