// Names: a member's half of the agreement on operations by name.
//
// The first use of a name is announced to the coordinator, which answers when all ranks have announced the same. Later
// uses that look like an agreed one start at once, without a message. A use that looks different is announced again;
// the coordinator recalls the others, who announce theirs although they may already run it: nothing can complete
// without every rank, so the answer, "agreed" or "cancelled", reaches a started operation in time. The root of a
// broadcast can, so a name whose root varies is announced in every use. Uses are counted by each rank for itself; they
// are the same number on all ranks because a failed name is forgotten by all. Pure state machine, loop thread of its
// engine; the engine sends what it returns.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/control/messages.h"

namespace sirtaki::control {

class Names {
 public:
  struct Submitted {
    std::uint64_t use = 0;
    std::optional<std::uint32_t> start_id;  // start now under this id; else wait for Start from on_agreed
    std::optional<Announce> announce;       // to send
    Status failed;                          // this use has failed already on another rank; nothing is in flight
  };
  struct Start {
    std::uint64_t use = 0;
    std::uint32_t id = 0;
  };

  Submitted submit(const std::string& name, const OpMeta& meta);
  // The use to start now, if this rank has submitted it and not started it.
  std::optional<Start> on_agreed(const Agreed& agreed);
  // The announcement to answer with, if there is one to make now.
  std::optional<Announce> on_recall(const Recall& recall);
  // True: the use is in flight here and ends with the message's status.
  bool on_cancelled(const OpCancelled& cancelled);
  // Others have joined: every use is announced until on_all_joined(). The announcements to make now: of uses that this
  // rank has begun without a word, and of which one of them knows nothing. `size`: of the job.
  std::vector<Announce> on_some_joined(const SomeJoined& joined, int size);
  // This rank is about to join: the announcements of what it has begun without a word and still has in flight.
  std::vector<Announce> on_joining();
  void on_all_joined() { announces_all_ = false; }
  // This rank has joined and takes part in this use, as if it had submitted and announced it. False: it has already.
  bool contribute_zeros(const StandInOp& use);
  // Returns those of these names that are unused here since the last such question; none of them is used until
  // on_forgotten().
  Unused on_ask_unused(const AskUnused& ask);
  void on_forgotten(const Forgotten& message);
  // Uses wait for on_forgotten() before submit().
  bool is_blocked(const std::string& name) const;
  bool any_blocked() const;
  std::size_t size() const { return entries_.size(); }
  // The operation is over on this rank, well or not.
  void finished(const std::string& name, std::uint64_t use);

  // For the others, when this rank leaves: the uses it has seen through.
  Leaving leaving() const;
  // Uses submitted so far, of each name.
  std::vector<Leaving::Count> submitted() const;
  // What a use in flight was submitted as; nullptr when it is not in flight.
  const OpMeta* meta_of(const std::string& name, std::uint64_t use) const;

 private:
  static constexpr std::size_t kRememberedShapes = 32;  // names used in turn see many: calls of torch.distributed

  struct Live {
    OpMeta meta;
    bool started = false;
    bool announced = false;
  };
  struct Entry {
    std::uint32_t id = 0;
    std::uint64_t next_use = 0;
    bool touched = false;  // used without a word since the coordinator asked
    bool blocked = false;
    std::deque<OpMeta> agreed;  // most recent first
    std::map<std::uint64_t, Live> live;
    std::set<std::uint64_t> recalled;        // uses to announce when they come
    std::map<std::uint64_t, Live> recent;    // uses that are over, for late recalls
    std::map<std::uint64_t, Status> failed;  // uses that failed elsewhere before they came here
    bool roots_vary = false;                 // of broadcasts that were agreed
  };

  void remember(Entry& entry, const OpMeta& meta);
  static std::optional<Announce> announcement(const std::string& name, std::uint64_t use, Live& live);

  std::unordered_map<std::string, Entry> entries_;
  std::unordered_map<std::uint32_t, std::string> by_id_;
  bool announces_all_ = false;
};

}  // namespace sirtaki::control
