#include "bind/io_events.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include "bind/numbered_names.hpp"
#include "core/clock.hpp"
#include "recorder/recorder.hpp"

namespace nb = nanobind;

namespace hocket {

namespace {

constexpr size_t kMostFiles = 1024;  // what comes later is one file
constexpr uint8_t kNoReduction = 0xff;

NumberedNames& files() {
  static auto* numbers = new NumberedNames(DefinitionKind::file, kMostFiles, "other files");  // NOLINT
  return *numbers;
}

// Place of its event, number of its file, ticks when it began, kind, route and `algorithm`.
using BegunIo = std::tuple<uint64_t, uint32_t, uint64_t, uint8_t, uint8_t, uint16_t>;

BegunIo begin_io(std::string_view name, uint8_t kind, uint8_t route, uint64_t offset) {
  Event event{};
  event.comm = files().of(name);
  event.aux = offset;
  event.thread = thread_number();
  event.algorithm = name.starts_with("file://") || name.starts_with("local://") ? kLocalFile : 0;
  event.kind = kind;
  event.backend = route;
  event.reduce = kNoReduction;
  event.state = EventState::started;
  event.layer = Layer::io;
  event.t_begin = ticks();
  SharedRing ring = Recorder::instance().ring(RingId::io);
  return {ring ? ring.add(event) : SharedRing::kNone, event.comm, event.t_begin, kind, route, event.algorithm};
}

// `error`: an errno; 0: it has succeeded.
void end_io(const BegunIo& begun, uint64_t nbytes, int error) {
  const auto& [index, file, begin, kind, route, algorithm] = begun;
  const uint64_t now = ticks();
  SharedRing ring = Recorder::instance().ring(RingId::io);
  if (!ring) return;
  ring.update(index, [&](Event& event) {
    event.t_begin = begin;  // one call may be many events, whose files are known at its end
    event.t_end = now;
    event.nbytes = nbytes;
    event.peer = error;
    event.state = error ? EventState::failed : EventState::completed;
  });
  const HistogramKey key{
      .comm = file,
      .peer = 0,
      .algorithm = algorithm,
      .kind = kind,
      .backend = route,
      .layer = Layer::io,
      .size_class = size_class_of(nbytes),
  };
  Recorder::instance().shared_histograms().add(key, files().rest(), now - begin, nbytes, error != 0);
}

}  // namespace

void bind_io_events(nb::module_& module) {
  module.def("recorder_handle", [] {
    return std::tuple(reinterpret_cast<uintptr_t>(&Recorder::instance()), std::string(recorder_build()));
  });
  module.def("begin_io", &begin_io, nb::arg("name"), nb::arg("kind"), nb::arg("route"), nb::arg("offset"));
  module.def("end_io", &end_io, nb::arg("begun"), nb::arg("nbytes"), nb::arg("error"));
}

}  // namespace hocket
