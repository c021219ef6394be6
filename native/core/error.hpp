// Errors at run time, as values. The binding turns each into the Python class of the same name.
#pragma once

#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace hocket {

enum class ErrorCode {
  invalid_argument,
  invalid_type,
  unsupported_dtype,
  invalid_state,
  collective_mismatch,
  comm_timeout,
  peer_failure,
  aborted,
  resource_exhausted,
  backend_unavailable,
  bootstrap_mismatch,
  interrupted,  // a signal handler raised; Python holds the pending exception
};

struct Error {
  ErrorCode code;
  std::string message;
  std::vector<int> ranks = {};  // missing or dead ranks of the communicator
};

class Failure : public std::exception {
 public:
  explicit Failure(Error error) : error_(std::move(error)) {}
  Failure(ErrorCode code, std::string message, std::vector<int> ranks = {})
      : error_{code, std::move(message), std::move(ranks)} {}
  const char* what() const noexcept override { return error_.message.c_str(); }
  const Error& error() const { return error_; }

 private:
  Error error_;
};

// "1, 2 and 5".
inline std::string join_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

// "rank 1", "ranks 2 and 5".
inline std::string ranks_text(const std::vector<int>& ranks) {
  return (ranks.size() > 1 ? "ranks " : "rank ") + join_ranks(ranks);
}

}  // namespace hocket
