// LinkBound: number of steps that hide a merge, and the gain of local steps over averaged gradients.
//
// Used by the interval controller. T is a step, C the transfer of all fragments, M that of the longest one:
//   H >= margin * C / T   the link is busy for at most 80 % of the time
//   D  ~ margin * M / T   most of the transfer of a fragment is hidden; more if steps wait for merges nevertheless
//   cost: wait of a synchronous step over T. Local steps that gain less than gain_permille are not worth it.
// The cost is measured in Mode::kSync and never predicted: in Mode::kLocal a round of synchronous steps is tried after
// the link became clearly faster, and otherwise so rarely that trials take a hundredth of the time. Values are running
// means, and bounds fall only when they are wrong by an eighth, so noise moves none of them. The controller owns it.
// Pure; integers only.
#pragma once

#include <cstdint>

#include "runtime/local_updates/controller/mode.h"
#include "runtime/local_updates/controller/round_stats.h"
#include "runtime/local_updates/controller/state_io.h"

namespace sirtaki::local_updates {

struct LinkOptions {
  std::int64_t gain_permille = 100;  // part of T that synchronous steps have to wait before local ones are worth it
  std::int64_t band_permille = 50;   // margin below it, at most half, before synchronous steps are worth it again
  std::int64_t margin_permille = 1250;
  std::int64_t trial_steps = 16;  // synchronous steps in a trial
};

class LinkBound {
 public:
  enum class Path : std::uint8_t { kSync, kLocal, kTrial };

  explicit LinkBound(const LinkOptions& options) : options_(options) {}

  // Adds a round of `steps` steps in Mode kSync or kLocal. A round without a measured step is ignored.
  void observe(const RoundStats& stats, Mode mode, std::int64_t steps);

  // Returns the better path; kTrial means one round of synchronous steps. Call once after a round in which no other
  // reason fixes the mode.
  Path path(Mode mode);

  // Returns true if the transfer of compressed differences was measured.
  bool knows_compressed() const { return compressed_ && sent_.count > 0; }
  // Return H with the present encoding and without compression; 1 if unknown. Not limited.
  std::int64_t steps() const { return steps_; }
  std::int64_t dense_steps() const { return dense_steps_; }
  // Return D with the present encoding and without compression. Not limited.
  std::int64_t delay() const { return delay_; }
  std::int64_t dense_delay() const { return dense_delay_; }
  // Returns the wait of the last synchronous steps in permille of T.
  std::int64_t cost_permille() const;
  // Returns the total wait of synchronous steps in units of T: the number of steps that would have fitted.
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
  // Ratios to T in 1/65536.
  Mean dense_;
  Mean cost_;
  Mean sent_;
  Mean longest_;
  Mean dense_longest_;
  std::int64_t hidden_ = 0;       // part of a transfer that M does not contain: encoding, busy processors
  Mode mode_ = Mode::kSync;       // mode of the rounds in dense_
  bool compressed_ = false;       // encoding of the local rounds in sent_, longest_ and hidden_
  std::int64_t reference_ = 0;    // sent_ of the first local rounds with this encoding; 0: too few rounds
  std::int64_t waited_ = 0;       // total wait of synchronous steps
  std::int64_t sync_steps_ = 0;   // steps of the last synchronous round
  std::int64_t local_steps_ = 0;  // local steps since then
  bool trying_ = false;           // the synchronous rounds are a trial
  std::int64_t vain_ = 0;         // consecutive trials without gain
  bool costly_ = false;           // the previous synchronous round waited too long
  std::int64_t steps_ = 1;
  std::int64_t dense_steps_ = 1;
  std::int64_t delay_ = 0;
  std::int64_t dense_delay_ = 0;
};

}  // namespace sirtaki::local_updates
