// Base of lanes that wrap a foreign library's lane: forwards the properties of the library.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/lane.hpp"

namespace hocket {

class LibraryLane : public Lane {
 public:
  explicit LibraryLane(std::unique_ptr<Lane> library) : library_(std::move(library)) {}

  const char* backend() const override { return library_->backend(); }
  size_t depth() const override { return library_->depth(); }
  std::optional<std::string> refuses(const Operation& op) const override { return library_->refuses(op); }
  bool takes_memory(const Operation& op) const override { return library_->takes_memory(op); }
  void note_issue(Operation& op) override { library_->note_issue(op); }
  void record_as(uint32_t comm) override { library_->record_as(comm); }
  std::string hint(const Operation& op) override { return library_->hint(op); }
  Polling polling() const override { return library_->polling(); }
  bool has_threads() const override { return library_->has_threads(); }
  bool keeps_arrays() const override { return library_->keeps_arrays(); }

 protected:
  const std::unique_ptr<Lane> library_;
};

}  // namespace hocket
