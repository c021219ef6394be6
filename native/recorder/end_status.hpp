// The last row of a process's series, which it writes itself.
#pragma once

#include "recorder/layout.hpp"

namespace hocket {

// Allocates nothing, and keeps errno.
void read_end_status(EndStatus& status);

}  // namespace hocket
