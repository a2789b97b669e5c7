// LinkBound: how many steps a merge needs to travel behind, and whether local steps are worth it at all.
//
// For: the interval controller. With T a step, C all fragments on the link and M the one that takes longest:
//   H >= margin * C / T   the link is busy for 80 % of the time at most
//   D  ~ margin * M / T   most of a fragment's way is hidden; more where steps wait for merges nevertheless
//   cost: what a synchronous step waits, over T. Local steps that win less than gain_permille are not worth it.
// The cost is measured in Mode::kSync, and nowhere predicted: in Mode::kLocal a round of synchronous steps is tried
// when the link has become clearly faster, and else so rarely that trials take a hundredth of the time. Values are
// running means, and bounds follow down only when they are wrong by an eighth, so noise moves none of them. Owned by:
// the controller. Pure; integers only.
#pragma once

#include <cstdint>

#include "runtime/local_updates/controller/mode.h"
#include "runtime/local_updates/controller/round_stats.h"
#include "runtime/local_updates/controller/state_io.h"

namespace sirtaki::local_updates {

struct LinkOptions {
  std::int64_t gain_permille = 100;  // of T that synchronous steps must wait for local ones to be worth it
  std::int64_t band_permille = 50;   // so much less, at most half, before synchronous ones are worth it again
  std::int64_t margin_permille = 1250;
  std::int64_t trial_steps = 16;  // synchronous ones in a trial
};

class LinkBound {
 public:
  enum class Path : std::uint8_t { kSync, kLocal, kTrial };

  explicit LinkBound(const LinkOptions& options) : options_(options) {}

  // A round of `steps` steps in Mode kSync or kLocal. Without a measured step nothing is learnt.
  void observe(const RoundStats& stats, Mode mode, std::int64_t steps);

  // What is worth it; asked once after a round, in which nothing else keeps the mode as it is. kTrial: one round of
  // synchronous steps.
  Path path(Mode mode);

  // What compressed differences need is measured.
  bool knows_compressed() const { return compressed_ && sent_.count > 0; }
  // H as differences travel now, and if they were not compressed; 1 while nothing is known. Not limited.
  std::int64_t steps() const { return steps_; }
  std::int64_t dense_steps() const { return dense_steps_; }
  // D as differences travel now, and if they were not compressed; not limited.
  std::int64_t delay() const { return delay_; }
  std::int64_t dense_delay() const { return dense_delay_; }
  // What synchronous steps waited when there last were any, permille of T.
  std::int64_t cost_permille() const;
  // What all of them have waited, in T: so many more steps would have fitted in their time.
  std::int64_t steps_waited() const;

  void state(StateIo& io);

 private:
  static constexpr std::int64_t kMeanRounds = 8;

  // The plain mean of the first kMeanRounds values, then a running one.
  struct Mean {
    std::int64_t value = 0;
    std::int64_t count = 0;

    void add(std::int64_t fresh);
    void state(StateIo& io);
  };

  bool trial_is_due() const;
  void learn_waits(const RoundStats& stats, std::int64_t steps);

  const LinkOptions options_;
  // Over T, in 1/65536.
  Mean dense_;
  Mean cost_;
  Mean sent_;
  Mean longest_;
  Mean dense_longest_;
  std::int64_t hidden_ = 0;       // of a fragment's way what M does not tell: encoding, busy processors
  Mode mode_ = Mode::kSync;       // of the rounds in dense_
  bool compressed_ = false;       // what the last local rounds had in sent_, longest_ and hidden_
  std::int64_t reference_ = 0;    // sent_ of the first local rounds that travelled so; 0: there are too few
  std::int64_t waited_ = 0;       // by all synchronous steps
  std::int64_t sync_steps_ = 0;   // in the last synchronous round
  std::int64_t local_steps_ = 0;  // since then
  bool trying_ = false;           // the synchronous rounds are a trial
  std::int64_t vain_ = 0;         // trials in a row
  bool costly_ = false;           // the synchronous round before waited too long
  std::int64_t steps_ = 1;
  std::int64_t dense_steps_ = 1;
  std::int64_t delay_ = 0;
  std::int64_t dense_delay_ = 0;
};

}  // namespace sirtaki::local_updates
