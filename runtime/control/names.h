// Names: the side of a member in the agreement on operations by name.
//
// The first use of a name is announced to the coordinator, which answers after all ranks have announced the same. Later
// uses that match an agreed one start at once, without a message.
// A use with other properties is announced again. The coordinator then recalls the uses of the other ranks, which
// announce theirs even if the operation runs already. No operation completes without every rank, so the answer,
// "agreed" or "cancelled", reaches a started operation in time. The root of a broadcast is an exception, so a name
// whose root varies is announced in every use.
// Each rank counts uses for itself; the numbers are equal on all ranks because all ranks forget a failed name. Pure
// state machine on the loop thread of its engine, which sends the returned messages.
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
    std::optional<std::uint32_t> start_id;  // start now under this id; if unset, wait for Start from on_agreed()
    std::optional<Announce> announce;       // message to send
    Status failed;                          // this use has already failed on another rank and does not start
  };
  struct Start {
    std::uint64_t use = 0;
    std::uint32_t id = 0;
  };

  Submitted submit(const std::string& name, const OpMeta& meta);
  // Returns the use to start now, if this rank has submitted it and not started it.
  std::optional<Start> on_agreed(const Agreed& agreed);
  // Returns the announcement to send now, if there is one.
  std::optional<Announce> on_recall(const Recall& recall);
  // Returns true if the use is in flight here and ends with the status of the message.
  bool on_cancelled(const OpCancelled& cancelled);
  // Handles that others have joined: every use is announced until on_all_joined(). Returns the announcements to send
  // now: uses that this rank has begun without a message and that one of the joined ranks has not submitted. `size` is
  // the size of the job.
  std::vector<Announce> on_some_joined(const SomeJoined& joined, int size);
  // Returns the announcements of uses in flight that this rank has begun without a message, before it joins.
  std::vector<Announce> on_joining();
  void on_all_joined() { announces_all_ = false; }
  // Makes this joined rank take part in a use, as if it had submitted and announced it. Returns false if it already
  // has.
  bool contribute_zeros(const StandInOp& use);
  // Returns the listed names that are unused here since the last such question. No use of them begins until
  // on_forgotten().
  Unused on_ask_unused(const AskUnused& ask);
  void on_forgotten(const Forgotten& message);
  // Returns true if uses of the name have to wait for on_forgotten() before submit().
  bool is_blocked(const std::string& name) const;
  bool any_blocked() const;
  std::size_t size() const { return entries_.size(); }
  // Ends an operation on this rank, with or without success.
  void finished(const std::string& name, std::uint64_t use);

  // Returns the completed uses, for the others, when this rank leaves.
  Leaving leaving() const;
  // Returns the number of uses submitted so far, for each name.
  std::vector<Leaving::Count> submitted() const;
  // Returns the properties of a use in flight; nullptr if it is not in flight.
  const OpMeta* meta_of(const std::string& name, std::uint64_t use) const;

 private:
  // Reused names see many shapes, for example in calls of torch.distributed.
  static constexpr std::size_t kRememberedShapes = 32;

  struct Live {
    OpMeta meta;
    bool started = false;
    bool announced = false;
  };
  struct Entry {
    std::uint32_t id = 0;
    std::uint64_t next_use = 0;
    bool touched = false;  // used without a message since the coordinator asked
    bool blocked = false;
    std::deque<OpMeta> agreed;  // most recent first
    std::map<std::uint64_t, Live> live;
    std::set<std::uint64_t> recalled;        // uses to announce when they are submitted
    std::map<std::uint64_t, Live> recent;    // completed uses, for late recalls
    std::map<std::uint64_t, Status> failed;  // uses that failed elsewhere before their submission here
    bool roots_vary = false;                 // agreed broadcasts had different roots
  };

  void remember(Entry& entry, const OpMeta& meta);
  static std::optional<Announce> announcement(const std::string& name, std::uint64_t use, Live& live);

  std::unordered_map<std::string, Entry> entries_;
  std::unordered_map<std::uint32_t, std::string> by_id_;
  bool announces_all_ = false;
};

}  // namespace sirtaki::control
