// The state of ranks on other hosts, as far as no library reports it, and the notices to these ranks.
//
// The control connection (hocket/boot/control.py) carries both. Its thread takes notices to send, and stores what it
// receives by the note_...() methods; the lanes read it under the progress lock. One mutex, always held for a short
// time only, protects the data.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/operation.hpp"

namespace hocket {

// A message from a rank to all other members.
struct Notice {
  // aborted: this rank aborts the communicator. left: this rank finalized it after operation `seq`. stalled: operation
  // `seq` takes long; asks which ranks are behind. issued: `history` is the hash of this rank's operations up to `seq`;
  // asks whether it is equal on the others.
  enum class Kind : uint8_t { aborted, left, stalled, issued };
  Kind kind;
  uint64_t key;              // of the communicator
  std::vector<int> members;  // job ranks, in order of the communicator's
  uint64_t seq = 0;
  uint64_t history = 0;
  Error error = {};
};

class Control {
 public:
  // places: where each rank of the job runs, for messages.
  explicit Control(std::vector<std::string> places);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // Readable while there are notices.
  int fd() const { return fd_; }
  std::vector<Notice> take_notices();

  // The note_...() methods store what the connection received. `rank`, ranks in errors and `behind` are ranks of the
  // communicator. Data that no rank of this job can have sent throws Failure.
  void note_death(int job_rank);
  // The job ranks that died.
  std::vector<int> dead();
  // The connection is lost: nothing more can be received.
  void note_lost(std::string why);
  void note_left(uint64_t key, int rank, uint64_t seq, uint64_t history);
  void note_abort(uint64_t key, Error error);
  void note_verdict(uint64_t key, uint64_t seq, std::vector<int> behind, std::string mismatch);
  // This rank's knowledge of an operation of a communicator; nothing if the communicator is not, or no longer, known.
  struct Report {
    uint64_t last;         // sequence number of the last operation issued
    uint64_t fingerprint;  // zero if the operation is not issued yet, or no longer in the log
    std::string text;
    std::string traits;  // see core/traits.hpp
  };
  std::optional<Report> report(uint64_t key, uint64_t seq);
  // Histories of the last kIssuedPeriod operations up to `seq`; zero for operations no longer in the log.
  std::vector<uint64_t> histories(uint64_t key, uint64_t seq);

 private:
  friend class RemotePeers;
  static constexpr size_t kLogged = 1024;
  static constexpr uint64_t kIssuedPeriod = 256;
  struct Left {
    uint64_t seq;
    uint64_t history;
    int64_t noted_ns;
  };
  struct Logged {
    Operation op;  // without blocks, which belong to the call
    uint64_t fingerprint;
    uint64_t history;  // a hash of the fingerprints up to this one
  };
  // One communicator; made by the first notice about it or by its opening here.
  struct Group {
    size_t num_members = 0;  // zero until it is opened here
    bool is_closed = false;
    std::optional<Error> failure;  // an abort or a mismatch
    std::map<int, Left> left;
    uint64_t stalled_seq = 0;
    std::vector<int> behind;  // ranks behind in stalled_seq, by the last verdict
    std::vector<std::string> backends;
    std::array<Logged, kLogged> log;  // index: sequence number % kLogged
    uint64_t last = 0;
    uint64_t history = 0;
  };
  static constexpr size_t kMostUnopened = 256;
  void send(Notice notice);
  void check_rank(int rank) const;  // throws Failure if the job has no such rank
  Group& group_of(uint64_t key);    // throws Failure if too many groups are not opened here
  void forget_if_all_left(uint64_t key);

  const std::vector<std::string> places_;
  int fd_;
  std::mutex mutex_;  // protects all fields below
  std::deque<Notice> notices_;
  std::vector<bool> dead_;  // by job rank
  std::optional<Error> lost_;
  std::map<uint64_t, Group> groups_;
};

}  // namespace hocket
