// What the members of a communicator know of each other besides what a library tells them.
#pragma once

#include <optional>

#include "core/error.hpp"

namespace hocket {

// Called under the progress lock.
class Peers {
 public:
  virtual ~Peers() = default;
  // Why nothing more can be done together: a member died, or gave the communicator up.
  virtual std::optional<Error> look_at_peers() const = 0;
  // Tells the other members that this one gives the communicator up.
  virtual void post_abort(const Error& error) const = 0;
};

}  // namespace hocket
