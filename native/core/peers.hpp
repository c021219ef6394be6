// What the members of a communicator know of each other without the help of a library.
#pragma once

#include <optional>

#include "core/error.hpp"

namespace hocket {

// Call all methods under the progress lock.
class Peers {
 public:
  virtual ~Peers() = default;
  // Why the communicator is unusable: a member died, or aborted it.
  virtual std::optional<Error> check_peers() const = 0;
  // Notifies the other members that this one aborts the communicator.
  virtual void post_abort(const Error& error) const = 0;
};

}  // namespace hocket
