#include "hosts/routed_messages.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace hocket {

Error as_seen_by_all(Error error, const std::vector<int>& numbers) {
  error.message = "between the ranks of one host, numbered within the host: " + error.message;
  for (int& each : error.ranks)
    each = static_cast<int>(std::distance(numbers.begin(), std::find(numbers.begin(), numbers.end(), each)));
  return error;
}

// The host's lane uses the numbers within the host, both in operations and in errors.
template <typename Call>
Progress RoutedMessages::call_host(Operation& op, const Call& call) {
  const int32_t rank = std::exchange(op.root, number_of(op));
  try {
    const Progress progress = call();
    op.root = rank;
    return progress;
  } catch (const Failure& failure) {
    op.root = rank;
    Error error = as_seen_by_all(failure.error(), numbers_);
    // The rank may have left because a rank on another host died: RemoteLane (WatchedLane) waits for that notice.
    if (error.code == ErrorCode::peer_failure) error.code = ErrorCode::aborted;
    throw Failure(error);
  }
}

Progress RoutedMessages::post(Operation& op) {
  if (number_of(op) < 0) return library_->post(op);
  return call_host(op, [&] { return host_->post(op); });
}

Progress RoutedMessages::test(Operation& op) {
  if (number_of(op) < 0) return library_->test(op);
  return call_host(op, [&] { return host_->test(op); });
}

bool RoutedMessages::cancel(Operation& op) noexcept {
  const int number = number_of(op);
  if (number < 0) return library_->cancel(op);
  const int32_t rank = std::exchange(op.root, number);
  const bool is_unnoticed = host_->cancel(op);
  op.root = rank;
  return is_unnoticed;
}

}  // namespace hocket
