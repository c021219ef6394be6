// The members of a communicator that spans hosts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/peers.hpp"
#include "hosts/control.hpp"

namespace hocket {

class RemotePeers final : public Peers {
 public:
  // members: job ranks, in the order of the communicator's ranks. backends: names, in the communicator's order.
  RemotePeers(std::shared_ptr<Control> control, std::vector<int> members, int rank, uint64_t key,
              std::vector<std::string> backends);
  ~RemotePeers() override;  // notifies the others that this member has left
  RemotePeers(const RemotePeers&) = delete;
  RemotePeers& operator=(const RemotePeers&) = delete;

  std::optional<Error> check_peers() const override;
  void post_abort(const Error& error) const override;

  // Why the communicator is broken, if a member has reported it.
  std::optional<Error> find_failure() const;
  void note_issued(const Operation& op) const;
  // PeerFailure for members that left before they took part in an operation that waits for them; or the abort.
  std::optional<Error> find_left(const Operation& op) const;
  // Asks which ranks are behind in an operation that takes long, and whether all members issued the same operation.
  void report_stall(const Operation& op) const;
  // The ranks that are behind, by the last answer.
  std::vector<int> behind(const Operation& op) const;

  const int rank;
  const int size;

 private:
  Error peer_failure(const std::vector<int>& ranks, const char* what) const;
  std::optional<Error> failure_as_seen_here(const Control::Group& group) const;

  const std::shared_ptr<Control> control_;
  const std::vector<int> members_;
  const uint64_t key_;
};

}  // namespace hocket
