// A foreign library's lane between ranks on several hosts. The control connection provides what shared memory provides
// on one host: which members died or left, and, for an operation that takes long, which are behind and whether all
// members issued the same operation.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "core/library_lane.hpp"
#include "core/watched_lane.hpp"
#include "hosts/remote_peers.hpp"

namespace hocket {

class RemoteLane final : public LibraryLane {
 public:
  RemoteLane(std::shared_ptr<const RemotePeers> peers, std::unique_ptr<Lane> library)
      : RemoteLane(peers, std::make_unique<WatchedLane>(peers, std::move(library))) {}

  Progress post(Operation& op) override;
  Progress test(Operation& op) override;
  std::vector<int> missing(const Operation& op) const override;
  bool cancel(Operation& op) noexcept override;
  std::optional<Error> health() override;
  void abandon(const Error& error) noexcept override { library_->abandon(error); }

 private:
  RemoteLane(std::shared_ptr<const RemotePeers> peers, std::unique_ptr<WatchedLane> library)
      : LibraryLane(std::move(library)),
        watched_(static_cast<const WatchedLane&>(*library_)),
        peers_(std::move(peers)) {}

  struct Posted {
    Operation op;  // as it was posted; for questions to the peers
    int64_t next_report_ns;
  };
  using Key = std::tuple<OpKind, int32_t, uint64_t>;
  // Messages are numbered per peer and direction.
  static Key key_of(const Operation& op) { return {op.kind, op.root, op.seq}; }
  Progress forget_if_done(const Operation& op, Progress state);

  const WatchedLane& watched_;  // the same as library_
  const std::shared_ptr<const RemotePeers> peers_;
  std::map<Key, Posted> posted_;
};

}  // namespace hocket
