// Frames in device memory, for the messages of frames.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "frames/outgoing.hpp"

namespace nb = nanobind;

namespace hocket {

// What is sent for a frame; nothing if the object is another one.
std::optional<SentBytes> loan_bytes_of(nb::handle frame);

void bind_frame_loans(nb::module_& module);

}  // namespace hocket
