// IntervalController: decides after every round on the number of local steps (H) of the next one, the delay (D) of its
// merges, and the mode.
//
//   H = min(bound of the policy, for `auto` raised by the link, twice the last H, limit of guards, `most`, steps left)
//   D = 1.25 M / T to the nearest, below H
// M and T are transfer and step time (link_bound.h). Gradients are averaged, with H = 1, while the training warms up,
// after alarms, on request of the program, and for `auto` while local steps save less than a part of T, while the
// learning rate is high and does not rest, and where the remaining steps are too few to repay the last drain.
//
// Every rank has a controller and gives it the same input: the statistics of each round and drain to decide(), and all
// other events to happened(). All ranks then compute the same intervals, weights and alarms; digests of decisions
// confirm this.
//   at the snapshot of a fragment    copy norms(fragment) and keep the copy with the fragment
//   when its reports are gathered    weigh() of that copy gives the weight of each rank; then differences are sent
//   when it is merged                keep the merge for the round, with the norm of the mean, unless it was given up
//   at the end of a round, a drain   agree() on the measurements of ranks, with the merges added; decide()
// The local updates of the engine own it and use it on one thread. Pure: no I/O, no thread, no clock; integers except
// for sums of squares (round_stats.h). updater.h handles merges, exchanges and the actions of guards.
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

// A decision after a round, with its inputs. Equal on all ranks.
struct Decision {
  std::uint64_t round = 0;  // number of earlier decisions
  std::int64_t step = 0;    // the step after which it holds
  // The interval in force. In Mode::kDrain the caller drains first, then calls decide() on the result.
  Interval interval;
  bool changed = false;               // H, D, mode or encoding differ from before
  std::vector<Alarm> alarms;          // ordered by guard, then rank
  std::int64_t statistics_steps = 1;  // bound of the policy
  std::int64_t link_steps = 1;        // bound of the link with the present encoding
  std::int64_t cost_permille = 0;     // wait of the last synchronous steps, as a part of a step
  std::uint64_t digest = 0;           // digest of the decision and the resulting state
};
std::string to_string(const Decision& decision);

class IntervalController {
 public:
  // Makes a controller. kInvalidArgument: options that check() refuses, no ranks or no fragments.
  static Result<std::unique_ptr<IntervalController>> make(const IntervalOptions& options, std::size_t ranks,
                                                          std::size_t fragments);
  // Makes a controller that continues in the saved state, on another rank or in another run, without Event::kJoined. If
  // the job now has other ranks, restore with the saved number and then use Event::kMembersChanged and reform().
  // kCorrupt: a state of other options, ranks or fragments.
  static Result<std::unique_ptr<IntervalController>> restore(const IntervalOptions& options, std::size_t ranks,
                                                             std::size_t fragments,
                                                             std::span<const std::int64_t> saved);

  // Decides at the end of a round in Mode::kSync or kLocal, and after a drain, which then leads to its target mode.
  // kCorrupt: impossible statistics; kInvalidArgument: the function of the program returned a number out of range;
  // kBug: neither a round nor a drain can end now. No decision is valid after an error.
  Result<Decision> decide(const RoundStats& stats);

  // Handles every other event, on all ranks alike: all but kWantLocal, kWantSync and kDrained, which belong to
  // decide(). Returns the interval in force. kBug: the event cannot happen now.
  Result<Interval> happened(Event event);
  // Prepares for the next epoch, with as many ranks as the list. `old_rank[r]` is the previous number of rank r; -1: a
  // new member, which restores the state of a remaining rank first. Goes with Event::kReformed. Merges of the previous
  // epoch no longer count.
  void reform(const std::vector<int>& old_rank);
  // Asks for synchronous steps from the next decision on, or withdraws the request.
  void ask_synchronous(bool wanted) { synchronous_wanted_ = wanted; }

  // Returns the norms to be copied at the snapshot of a fragment, in Mode::kLocal and kDrain.
  const FragmentNorms& norms(int fragment) const { return guards_.norms(fragment); }

  const Interval& current() const { return now_; }
  const IntervalOptions& options() const { return options_; }
  // Returns the state for a checkpoint or a new member.
  std::vector<std::int64_t> saved() const;

 private:
  // The wanted next round, before the mode changes.
  struct Wish {
    std::int64_t steps = 1;  // 1: synchronous
    Reason reason = Reason::kStart;
    std::int64_t encoding = 0;
    Escalation escalation = Escalation::kNone;
  };

  // The learning rate of the training so far.
  struct Rate {
    std::int64_t highest_pico = RoundStats::kUnknown;
    std::int64_t lowest_pico = RoundStats::kUnknown;  // since the highest one, unless the rate rests
    bool fell = false;                                // it has been clearly below the highest one since then
    bool rests = false;                               // it has stood still for long, or nearly
    std::int64_t last_rise = 0;                       // step in which it last rose; 0: never
    std::int64_t last_fall = 0;  // step in which it became known, or last fell below the lowest one

    void follow(const RoundStats& stats);
    // Returns the rate of the round as a part of the highest one; all of it if unknown.
    std::int64_t permille(const RoundStats& stats) const;
    void state(StateIo& io);
  };

  IntervalController(const IntervalOptions& options, std::size_t ranks, std::size_t fragments);

  bool warming_up(const RoundStats& stats);
  // Returns true if local steps would cost too much loss, unless the rate rests and has never fallen: a smaller one may
  // never come.
  bool rate_is_high(const RoundStats& stats) const;
  bool pausing(std::int64_t step) const;
  void apply_alarms(const std::vector<Alarm>& alarms, std::int64_t step);
  Result<Wish> wish(const RoundStats& stats, Decision& decision);
  void raise_for_link(std::int64_t allowed, Wish& wish) const;
  void limit(const RoundStats& stats, Wish& wish) const;
  std::int64_t delay_for(const Wish& wish) const;
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
  // The last interval in Mode::kLocal; one step if there was none since synchronous steps, except for a trial.
  Interval local_;
  Reason pending_ = Reason::kStart;  // reason of the mode that a drain leads to
  bool warm_ = false;                // the warm-up is over
  bool synchronous_wanted_ = false;
  Rate rate_;
  std::int64_t step_ = 0;
  std::int64_t pause_until_ = 0;             // step at which a pause without waits ends
  std::int64_t waited_before_ = 0;           // steps_waited() when it began
  std::int64_t ceiling_ = kLongestInterval;  // limit of H that guards have set
  Reason ceiling_reason_ = Reason::kStart;
  std::int64_t extra_delay_ = 0;
  std::int64_t calm_ = 0;  // consecutive rounds without an alarm for all ranks
  std::int64_t round_ = 0;
};

}  // namespace sirtaki::local_updates
