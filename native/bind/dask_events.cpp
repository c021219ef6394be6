#include "bind/dask_events.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include "bind/errors.hpp"
#include "bind/numbered_names.hpp"
#include "core/clock.hpp"
#include "frames/stream.hpp"
#include "recorder/recorder.hpp"

namespace nb = nanobind;

namespace hocket {

namespace {

constexpr size_t kMostPeers = 1024;  // what comes later is one peer
constexpr uint8_t kNoReduction = 0xff;

NumberedNames& peers() {
  static auto* numbers = new NumberedNames(DefinitionKind::connection, kMostPeers, "other connections");  // NOLINT
  return *numbers;
}

uint8_t number_of_path(const std::string& path) {
  const auto* const found = std::find(kDaskPathNames.begin(), kDaskPathNames.end(), path);
  if (found == kDaskPathNames.end()) throw Failure(ErrorCode::invalid_argument, "there is no path \"" + path + '"');
  return static_cast<uint8_t>(found - kDaskPathNames.begin());
}

// Ticks when a writer began, and the bytes of earlier messages that waited for the peer.
using BegunSend = std::tuple<uint64_t, uint64_t>;

// Records the messages of one connection.
class MessageLog {
 public:
  MessageLog(std::string peer, const std::string& path, int peer_pid)
      : peer_(std::move(peer)), path_(number_of_path(path)), peer_pid_(peer_pid > 0 ? peer_pid : -1) {}

  static bool is_on() { return Recorder::instance().is_on(); }
  static BegunSend begin(const FrameStream& stream) { return {ticks(), stream.waiting_nbytes()}; }
  void sent(const BegunSend& begun, uint64_t nbytes) {
    const auto [begin, waiting] = begun;
    add(DaskKind::send, begin, nbytes, waiting);
  }
  void received(const FrameStream& stream) { add(DaskKind::receive, stream.taken_since(), stream.taken_nbytes(), 0); }

 private:
  void add(DaskKind kind, uint64_t begin, uint64_t nbytes, uint64_t waiting) {
    Recorder& recorder = Recorder::instance();
    SharedRing ring = recorder.ring(RingId::dask);
    if (!ring) return;
    if (number_ == 0 || num_forks_ != recorder.num_forks()) {
      number_ = peers().of(peer_);
      num_forks_ = recorder.num_forks();
    }
    Event event{};
    event.t_begin = begin;
    event.t_end = ticks();
    event.nbytes = nbytes;
    event.aux = waiting;
    event.comm = number_;
    event.peer = peer_pid_;
    event.thread = thread_number();
    event.kind = static_cast<uint8_t>(kind);
    event.backend = path_;
    event.reduce = kNoReduction;
    event.state = EventState::completed;
    event.layer = Layer::dask;
    ring.add(event);
  }

  const std::string peer_;
  const uint8_t path_;
  const int32_t peer_pid_;
  uint32_t number_ = 0;  // of the peer
  uint32_t num_forks_ = 0;
};

}  // namespace

void bind_dask_events(nb::module_& module) {
  nb::class_<MessageLog>(module, "MessageLog")
      .def(nb::init<std::string, const std::string&, int>(), nb::arg("peer"), nb::arg("path"), nb::arg("peer_pid"))
      .def_prop_ro("is_on", [](const MessageLog&) { return MessageLog::is_on(); })
      .def(
          "begin", [](const MessageLog&, const FrameStream& stream) { return MessageLog::begin(stream); },
          nb::arg("stream"))
      .def("sent", &MessageLog::sent, nb::arg("begun"), nb::arg("nbytes"))
      .def("received", &MessageLog::received, nb::arg("stream"));
}

}  // namespace hocket
