// The traits of an operation that must be equal on all members, by name: an error can then name the traits that differ.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/operation.hpp"

namespace hocket {

// Lines "name=value". The value for blocks of different sizes is a hash, which is equal if the sizes are equal.
inline std::string traits(const Operation& op) {
  std::string lines = std::string("operation=") + name(op.kind);
  const auto add = [&](const char* what, const std::string& value) {
    lines.append("\n").append(what).append("=").append(value);
  };
  if (op.kind == OpKind::barrier) return lines;
  if (reduces(op.kind)) add("reduction", name(op.reduce));
  if (op.is_of_object) {
    add("content", "an object");
  } else {
    add("type", name(op.dtype));
    add("size", std::to_string(op.agreed_nbytes()));
  }
  if (op.blocks) add("counts", std::to_string(op.blocks->agreed));
  if (has_root(op.kind)) add("root", std::to_string(op.root));
  if (op.program) add("algorithm", op.program->name);
  add("library", std::to_string(op.backend));
  return lines;
}

// "the type and the size": the traits that differ between ranks; empty if none does. If the operation differs, no other
// trait is named.
inline std::string what_differs(const std::vector<std::string>& all_traits) {
  std::map<std::string, std::vector<std::string>> values;  // trait -> values of the ranks that have it
  std::vector<std::string> names;
  for (const std::string& lines : all_traits)
    for (size_t begin = 0; begin < lines.size();) {
      const size_t end = std::min(lines.find('\n', begin), lines.size());
      const std::string line = lines.substr(begin, end - begin);
      const size_t middle = std::min(line.find('='), line.size());
      std::vector<std::string>& of_name = values[line.substr(0, middle)];
      if (of_name.empty()) names.push_back(line.substr(0, middle));
      of_name.push_back(line.substr(middle));
      begin = end + 1;
    }
  std::vector<std::string> differing;
  for (const std::string& each : names) {
    const std::vector<std::string>& of_ranks = values[each];
    if (of_ranks.size() == all_traits.size() && std::set(of_ranks.begin(), of_ranks.end()).size() == 1) continue;
    differing.push_back("the " + each);
    if (each == "operation") break;
  }
  std::string text;
  for (size_t i = 0; i < differing.size(); ++i) {
    if (i > 0) text += i + 1 == differing.size() ? " and " : ", ";
    text += differing[i];
  }
  return text;
}

// "operation number 3: the ranks differ in the size: ", the begin of a message; the operation of each rank follows.
inline std::string mismatch_head(uint64_t seq, const std::vector<std::string>& all_traits) {
  const std::string what = what_differs(all_traits);
  std::string text = "operation number " + std::to_string(seq) + ": ";
  if (!what.empty()) text.append("the ranks differ in ").append(what).append(": ");
  return text;
}

}  // namespace hocket
