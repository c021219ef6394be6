// The native end of the control connection.
#include "hosts/control.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind/communicator.hpp"

namespace hocket {

namespace {

constexpr const char* kNoticeNames[] = {"aborted", "left", "stalled", "issued"};

nb::list take_notices(PyControl& self) {
  nb::list notices;
  for (const Notice& each : self.control->take_notices()) {
    nb::dict notice;
    notice["what"] = kNoticeNames[static_cast<size_t>(each.kind)];
    notice["key"] = each.key;
    notice["seq"] = each.seq;
    notice["history"] = each.history;
    notice["members"] = each.members;
    if (each.kind == Notice::Kind::aborted) {
      notice["code"] = static_cast<int>(each.error.code);
      notice["text"] = each.error.message;
      notice["ranks"] = each.error.ranks;
    }
    notices.append(notice);
  }
  return notices;
}

void note_abort(PyControl& self, uint64_t key, int code, std::string text, std::vector<int> ranks) {
  // It comes from another rank's program, which may be of another version.
  const bool is_known = code >= 0 && code < static_cast<int>(ErrorCode::interrupted);
  self.control->note_abort(
      key, {is_known ? static_cast<ErrorCode>(code) : ErrorCode::aborted, std::move(text), std::move(ranks)});
}

std::optional<std::tuple<uint64_t, uint64_t, std::string, std::string>> report(PyControl& self, uint64_t key,
                                                                               uint64_t seq) {
  std::optional<Control::Report> report = self.control->report(key, seq);
  if (!report) return std::nullopt;
  return std::tuple(report->last, report->fingerprint, std::move(report->text), std::move(report->traits));
}

}  // namespace

void bind_control(nb::module_& module) {
  nb::class_<PyControl>(module, "Control", "The state of ranks on other hosts, and messages to them.")
      .def(
          "__init__",
          [](PyControl* self, std::vector<std::string> places) {
            new (self) PyControl{std::make_shared<Control>(std::move(places))};
          },
          nb::arg("places"))
      .def("fileno", [](const PyControl& self) { return self.control->fd(); })
      .def("take_notices", &take_notices)
      .def(
          "note_death", [](PyControl& self, int rank) { self.control->note_death(rank); }, nb::arg("rank"))
      .def("dead", [](const PyControl& self) { return self.control->dead(); })
      .def(
          "note_lost", [](PyControl& self, std::string why) { self.control->note_lost(std::move(why)); },
          nb::arg("why"))
      .def(
          "note_left",
          [](PyControl& self, uint64_t key, int rank, uint64_t seq, uint64_t history) {
            self.control->note_left(key, rank, seq, history);
          },
          nb::arg("key"), nb::arg("rank"), nb::arg("seq"), nb::arg("history"))
      .def("note_abort", &note_abort, nb::arg("key"), nb::arg("code"), nb::arg("text"), nb::arg("ranks"))
      .def(
          "note_verdict",
          [](PyControl& self, uint64_t key, uint64_t seq, std::vector<int> behind, std::string mismatch) {
            self.control->note_verdict(key, seq, std::move(behind), std::move(mismatch));
          },
          nb::arg("key"), nb::arg("seq"), nb::arg("behind"), nb::arg("mismatch"))
      .def(
          "histories", [](PyControl& self, uint64_t key, uint64_t seq) { return self.control->histories(key, seq); },
          nb::arg("key"), nb::arg("seq"))
      .def("report", &report, nb::arg("key"), nb::arg("seq"));
}

}  // namespace hocket
