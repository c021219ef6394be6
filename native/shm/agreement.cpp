#include "shm/agreement.hpp"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "core/traits.hpp"

namespace hocket {

bool Agreement::is_balanced() const {
  uint64_t sum = 0;
  for (int peer = 0; peer < region_->size; ++peer) {
    uint64_t balance;
    std::memcpy(&balance, region_->line(lane_, round_, peer).payload + kBalanceAt, sizeof balance);
    sum += balance;
  }
  return sum == 0;
}

// Checks now and then whether a member without a line has issued another operation under this number, on another lane.
Progress Agreement::check_for_stray(const Operation& op) {
  if (!is_stray_check_due_) return Progress::waiting;
  is_stray_check_due_ = false;
  if (!op.site) return Progress::waiting;  // the caller sets it before it waits longer
  for (int peer = 0; peer < region_->size; ++peer) {
    const auto issued = region_->issued(peer, op.seq);
    // If it issued an operation on this lane, its line will come; so all members read the same lines.
    if (!issued || issued->first.backend == op.backend) continue;
    cancel();
    const auto text = [&](const Operation& which) {
      return describe(which) + " on " + region_->backend_name(which.backend);
    };
    throw Failure(ErrorCode::collective_mismatch,
                  "operation number " + std::to_string(op.seq) + ": rank " + std::to_string(region_->rank) + ": " +
                      text(op) + " at " + op.site + "; rank " + std::to_string(peer) + ": " + text(issued->first));
  }
  return Progress::waiting;
}

Progress Agreement::exchange_details(const Operation& op) {
  if (phase_ != Phase::details) {
    phase_ = Phase::publish_detail;
    if (!op.site) return Progress::waiting;  // as above
    publish_detail(op);
    return Progress::moved;
  }
  if (!missing().empty()) return Progress::waiting;
  raise_mismatch(op);
}

void Agreement::publish_detail(const Operation& op) {
  Detail& detail = region_->detail(lane_, region_->rank);
  if (refusal_) {
    detail.error = 1 + static_cast<int32_t>(refusal_->code);
    std::snprintf(detail.text, sizeof detail.text, "%s, at %s", refusal_->message.c_str(), op.site);
  } else {
    detail.error = 0;
    std::snprintf(detail.traits, sizeof detail.traits, "%s", traits(op).c_str());
    std::snprintf(detail.text, sizeof detail.text, "%s at %s", describe(op).c_str(), op.site);
  }
  detail.seq.store(op.seq, std::memory_order_release);
  region_->ring_peers();
  phase_ = Phase::details;
}

void Agreement::raise_mismatch(const Operation& op) {
  Error error{ErrorCode::collective_mismatch, "", {}};
  // Group the ranks that issued the same operation.
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  std::vector<std::string> all_traits;
  for (int peer = 0; peer < region_->size; ++peer) {
    const Detail& detail = region_->detail(lane_, peer);
    const std::string text = detail.text;
    if (detail.error) {
      error.code = static_cast<ErrorCode>(detail.error - 1);
      error.ranks.push_back(peer);
    } else {
      all_traits.emplace_back(detail.traits);
    }
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& each) { return each.first == text; });
    if (group == groups.end()) group = groups.insert(group, {text, {}});
    group->second.push_back(peer);
  }
  error.message = mismatch_head(op.seq, error.ranks.empty() ? all_traits : std::vector<std::string>{});
  for (size_t i = 0; i < groups.size(); ++i)
    error.message += (i ? "; " : "") + ranks_text(groups[i].second) + ": " + groups[i].first;
  refusal_.reset();
  finish();
  throw Failure(std::move(error));
}

std::vector<int> Agreement::missing() const {
  std::vector<int> ranks;
  for (int peer = 0; peer < region_->size; ++peer) {
    const bool is_missing =
        phase_ == Phase::lines
            ? peer >= next_line_ && region_->line(lane_, round_, peer).seq.load(std::memory_order_acquire) != seq_
            : phase_ == Phase::details && region_->detail(lane_, peer).seq.load(std::memory_order_acquire) < seq_;
    if (is_missing) ranks.push_back(peer);
  }
  return ranks;
}

std::optional<Error> Agreement::health() {
  if (std::optional<Error> error = region_->check_peers()) return error;
  is_stray_check_due_ = region_->num_lanes > 1;
  if (phase_ == Phase::closed) return std::nullopt;
  const std::vector<int> left = region_->left();
  return region_->failure_of(left, missing());
}

}  // namespace hocket
