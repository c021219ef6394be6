// What a rank knows of ranks on other hosts besides what libraries tell, and what it has to say to them.
//
// The control connection (hocket/boot/control.py) carries both: its thread takes notices from here and notes here what
// it heard; the lanes read under the progress lock. One mutex, held for a moment only, is between them.
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

// From a rank to all others.
struct Notice {
  // aborted: this rank gives the communicator up. left: it finalized it after operation `seq`. stalled: operation `seq`
  // takes long, who is behind? issued: up to `seq` it issued what `history` stands for, did the others, too?
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
  // places: of each rank of the job, where it runs; for messages.
  explicit Control(std::vector<std::string> places);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // Readable while there are notices.
  int fd() const { return fd_; }
  std::vector<Notice> take_notices();

  // What the connection heard. Ranks in errors and `behind` are those of the communicator. What no rank of this job
  // can have said is thrown as a Failure.
  void note_death(int job_rank);
  // Job ranks.
  std::vector<int> dead();
  // Nothing will be heard any more.
  void note_lost(std::string why);
  void note_left(uint64_t key, int rank, uint64_t seq, uint64_t history);
  void note_abort(uint64_t key, Error error);
  void note_verdict(uint64_t key, uint64_t seq, std::vector<int> behind, std::string mismatch);
  // What this rank can say about an operation of a communicator; nothing if it does not know the communicator (any
  // more).
  struct Report {
    uint64_t last;         // number of the last operation issued
    uint64_t fingerprint;  // zero if that operation was not issued yet, or is forgotten
    std::string text;
    std::string traits;  // see core/traits.hpp
  };
  std::optional<Report> report(uint64_t key, uint64_t seq);
  // Of the operations of the last period up to `seq`; zero for one that is forgotten.
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
    Operation op;  // without its blocks, which belong to the call
    uint64_t fingerprint;
    uint64_t history;  // a hash of the fingerprints up to this one
  };
  // One communicator; made by whoever speaks of it first.
  struct Group {
    size_t num_members = 0;  // zero until it is opened here
    bool is_closed = false;
    std::optional<Error> failure;  // an abort or a mismatch
    std::map<int, Left> left;
    uint64_t stalled_seq = 0;
    std::vector<int> behind;  // in stalled_seq, as the last verdict said
    std::vector<std::string> backends;
    std::array<Logged, kLogged> log;  // by number
    uint64_t last = 0;
    uint64_t history = 0;
  };
  static constexpr size_t kMostUnopened = 256;
  void send(Notice notice);
  void check_rank(int rank) const;  // throws Failure for one that cannot be
  Group& group_of(uint64_t key);    // throws Failure where others spoke of too many that are not opened here
  void forget_if_over(uint64_t key);

  const std::vector<std::string> places_;
  int fd_;
  std::mutex mutex_;  // of all below
  std::deque<Notice> notices_;
  std::vector<bool> dead_;  // by job rank
  std::optional<Error> lost_;
  std::map<uint64_t, Group> groups_;
};

}  // namespace hocket
