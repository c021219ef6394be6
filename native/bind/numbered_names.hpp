// Numbers of names in the recorder, each defined once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "recorder/recorder.hpp"

namespace hocket {

// Used with the GIL held. A forked child has a recorder without names.
class NumberedNames {
 public:
  // rest: name of all that come after the first `most`.
  NumberedNames(DefinitionKind kind, size_t most, std::string_view rest) : kind_(kind), most_(most), rest_name_(rest) {}

  uint32_t of(std::string_view name) {
    Recorder& recorder = Recorder::instance();
    if (num_forks_ != recorder.num_forks() || rest_ == 0) {
      num_forks_ = recorder.num_forks();
      numbers_.clear();
      rest_ = recorder.define(kind_, rest_name_);
    }
    const auto known = numbers_.find(std::string(name));
    if (known != numbers_.end()) return known->second;
    if (numbers_.size() >= most_) return rest_;
    return numbers_[std::string(name)] = recorder.define(kind_, name);
  }
  uint32_t rest() const { return rest_; }

 private:
  const DefinitionKind kind_;
  const size_t most_;
  const std::string_view rest_name_;  // a literal
  std::unordered_map<std::string, uint32_t> numbers_;
  uint32_t num_forks_ = 0;
  uint32_t rest_ = 0;
};

}  // namespace hocket
