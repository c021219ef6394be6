// The recorder of the hooks, for hocket's extension module in the same process: both write one memory.
#include <cstring>

#include "hooks/hooks.hpp"

HOCKET_HOOK hocket::Recorder* hocket_recorder(const char* build) {
  return std::strcmp(build, hocket::recorder_build()) == 0 ? &hocket::Recorder::own() : nullptr;
}
