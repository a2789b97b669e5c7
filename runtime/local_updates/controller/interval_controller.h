// IntervalController: decides after every round how many local steps the next one has, how late its merges come, and
// in which mode the training goes on.
//
//   H = min(policy's bound, for `auto` raised by the link's, twice the last H, what guards allow, `most`, steps left)
//   D = 1.25 M / T to the nearest, below H
// H is 1 with averaged gradients while the training warms up, after alarms, where the program asks for it, and for
// `auto` as long as synchronous steps wait for less than a tenth of their time.
// Every rank has one and feeds it the same: the statistics of each round and of each drain to decide(), and what else
// happened to happened(). Then all come to the same intervals, weights and alarms; digests of Decisions say so.
//   snapshot of a fragment     norms(fragment), a copy, which goes with the fragment
//   its reports are gathered   weigh() of that copy: what each rank counts; then differences travel
//   it is merged               kept for the round, with the norm of the mean; one that is given up is not
//   end of a round, a drain    agree() on what ranks measured, the merges added; decide()
// Owned by: the engine's local updates; used by the loop's thread. Pure: no I/O, no thread, no clock; integers but for
// sums of squares (round_stats.h).
// Not for: merges, exchanges, and carrying out what guards ask for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/local_updates/controller/guards.h"
#include "runtime/local_updates/controller/interval.h"
#include "runtime/local_updates/controller/interval_policies.h"
#include "runtime/local_updates/controller/link_bound.h"
#include "runtime/local_updates/controller/norms.h"
#include "runtime/local_updates/controller/round_stats.h"
#include "runtime/local_updates/controller/spec.h"

namespace sirtaki::local_updates {

// What was decided after a round, and from what. Equal on all ranks.
struct Decision {
  std::uint64_t round = 0;            // decisions before it
  std::int64_t step = 0;              // after which it holds
  Interval interval;                  // in force from now on; in Mode::kDrain drain first, then decide() on that
  bool changed = false;               // another H, D, mode or encoding than before
  std::vector<Alarm> alarms;          // by guard, then rank
  std::int64_t statistics_steps = 1;  // the policy's bound
  std::int64_t link_steps = 1;        // the link's, as differences travel now
  std::int64_t cost_permille = 0;     // of a step, what a synchronous one waited when there last were any
  std::uint64_t digest = 0;           // of all this and of the state it leaves
};
std::string to_string(const Decision& decision);

class IntervalController {
 public:
  // kInvalidArgument: options that check() refuses, no ranks or no fragments.
  static Result<std::unique_ptr<IntervalController>> make(const IntervalOptions& options, std::size_t ranks,
                                                          std::size_t fragments);
  // One that goes on in current() where saved() was called, on another rank or in another run, without Event::kJoined.
  // Where the job now has other ranks, it is restored with those that were saved, and goes through
  // Event::kMembersChanged and reform(). kCorrupt: not of these options, ranks and fragments.
  static Result<std::unique_ptr<IntervalController>> restore(const IntervalOptions& options, std::size_t ranks,
                                                             std::size_t fragments,
                                                             std::span<const std::int64_t> saved);

  // At the end of a round in Mode::kSync or kLocal, and when a drain is complete, which then leads where it was to.
  // kCorrupt: statistics that cannot be; kInvalidArgument: the program's function gave a number out of range; kBug:
  // neither a round nor a drain can end now. After an error no further decision makes sense.
  Result<Decision> decide(const RoundStats& stats);

  // Something else, on all ranks alike: every Event but kWantLocal, kWantSync and kDrained, which are decide()'s.
  // Returns what is in force then. kBug: it cannot happen now.
  Result<Interval> happened(Event event);
  // The next epoch has as many ranks as the list; `old_rank[r]`: who rank r was, -1: a joiner, which restores the state
  // of a rank that stayed before. Goes with Event::kReformed. Merges of the epoch before count no more.
  void reform(const std::vector<int>& old_rank);
  // Whether the program wants synchronous steps, from the next decision on.
  void ask_synchronous(bool wanted) { synchronous_wanted_ = wanted; }

  // To be copied at a fragment's snapshot, in Mode::kLocal and kDrain.
  const FragmentNorms& norms(int fragment) const { return guards_.norms(fragment); }

  const Interval& current() const { return now_; }
  const IntervalOptions& options() const { return options_; }
  // For a checkpoint, or a joiner.
  std::vector<std::int64_t> saved() const;

 private:
  // What the next round shall be, before the mode follows.
  struct Wish {
    std::int64_t steps = 1;  // 1: synchronous
    Reason reason = Reason::kStart;
    bool compress = false;
    Escalation escalation = Escalation::kNone;
  };

  IntervalController(const IntervalOptions& options, std::size_t ranks, std::size_t fragments);

  bool warming_up(const RoundStats& stats);
  void apply_alarms(const std::vector<Alarm>& alarms, std::int64_t step);
  Result<Wish> wish(const RoundStats& stats, Decision& decision);
  void raise_for_link(std::int64_t allowed, Wish& wish) const;
  void limit(const RoundStats& stats, Wish& wish) const;
  std::int64_t delay_for(std::int64_t steps) const;
  Status apply(const Wish& wish);
  Status end_drain();
  void fail(Reason reason);
  Interval resumed(Reason reason) const;
  void state(StateIo& io);
  bool is_consistent() const;
  std::uint64_t digest_of(const Decision& decision) const;

  const IntervalOptions options_;
  std::size_t ranks_;
  const std::size_t fragments_;
  const std::unique_ptr<Policy> policy_;
  LinkBound link_;
  Guards guards_;
  ModeState mode_;
  Interval now_;
  Interval local_;  // the last one in Mode::kLocal; one step: there was none since synchronous ones, but for a trial
  Reason pending_ = Reason::kStart;  // of the mode that a drain leads to
  bool warm_ = false;                // the warm-up is over
  bool synchronous_wanted_ = false;
  std::int64_t highest_lr_pico_ = RoundStats::kUnknown;
  std::int64_t last_rise_ = 0;  // of the learning rate, a step; 0: it has not risen
  std::int64_t step_ = 0;
  std::int64_t pause_until_ = 0;             // a step
  std::int64_t ceiling_ = kLongestInterval;  // that guards have put on H
  Reason ceiling_reason_ = Reason::kStart;
  std::int64_t extra_delay_ = 0;
  std::int64_t calm_ = 0;  // rounds without an alarm that concerns all
  std::int64_t round_ = 0;
};

}  // namespace sirtaki::local_updates
