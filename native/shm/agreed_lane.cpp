#include "shm/agreed_lane.hpp"

namespace hocket {

Progress AgreedLane::post(Operation& op) {
  passages_.emplace_back();
  op.token = &passages_.back();
  waiting_.push_back(&passages_.back());
  if (waiting_.size() == 1 && region_->size > 1) agreement_.begin(op);
  return Progress::moved;
}

Progress AgreedLane::test(Operation& op) {
  Passage& passage = passage_of(op);
  if (passage.in_library) return in_library(op, &Lane::test);
  if (!is_next(passage)) return Progress::waiting;
  if (region_->size > 1) {
    if (!agreement_.is_open()) agreement_.begin(op);
    try {
      const Progress progress = agreement_.test(op);
      if (progress != Progress::done) return progress;
    } catch (...) {
      forget(op);
      throw;
    }
    agreement_.finish();
  }
  waiting_.pop_front();
  passage.in_library = true;
  const Progress progress = in_library(op, &Lane::post);
  return progress == Progress::waiting ? Progress::moved : progress;  // moved: the operation has left the queue
}

// The library keeps its own token in the operation.
Progress AgreedLane::in_library(Operation& op, Progress (Lane::*call)(Operation&)) {
  Passage& passage = passage_of(op);
  op.token = passage.token;
  try {
    const Progress progress = (library_.get()->*call)(op);
    passage.token = op.token;
    op.token = &passage;
    if (progress == Progress::done) forget(op);
    return progress;
  } catch (...) {
    op.token = &passage;
    forget(op);
    throw;
  }
}

void AgreedLane::forget(Operation& op) {
  Passage* passage = &passage_of(op);
  waiting_.remove(passage);
  passages_.remove_if([&](const Passage& each) { return &each == passage; });
  op.token = nullptr;
}

std::vector<int> AgreedLane::missing(const Operation& op) const {
  const Passage& passage = passage_of(op);
  if (!passage.in_library) return agreement_.missing();
  Operation inside = op;
  inside.token = passage.token;
  return library_->missing(inside);
}

bool AgreedLane::cancel(Operation& op) noexcept {
  Passage& passage = passage_of(op);
  bool unnoticed = true;
  if (passage.in_library) {
    op.token = passage.token;
    unnoticed = library_->cancel(op);
    op.token = &passage;
  } else if (is_next(passage) && agreement_.is_open()) {
    agreement_.cancel();
    unnoticed = false;  // the line is already published
  }
  forget(op);
  return unnoticed;
}

std::optional<Error> AgreedLane::health() {
  if (std::optional<Error> error = agreement_.health()) return error;
  return library_->health();
}

}  // namespace hocket
