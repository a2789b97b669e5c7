// LinkBound: number of steps that hide a merge, and the gain of local steps over averaged gradients.
//
// Used by the interval controller. T is the time of a step, C the transfer time of all fragments, M that of the longest
// fragment, L the latency of one exchange between distant hosts, 0 between near ones. Transfers have lost one L each;
// the second one of a large sum stays in them.
//   H >= margin * C / T         the link is busy for at most 80 % of the time
//   D  ~ margin * (M + 2L) / T  hides most of the transfer of a fragment and of the vote; more if steps wait anyway
//   cost                        the wait of a synchronous step over T
// Local steps that gain less than gain_permille are not worth it. At the highest learning rate they have to gain
// rate_factor times as much, because a training needs more of them to the same loss.
//   gain                        the cost; once local steps are timed (Times), at most (T + wait) / their time - 1
// The cost is measured in Mode::kSync and never predicted. In Mode::kLocal a round of synchronous steps is therefore
// tried after the link became so much faster that steps in proportion to transfers would be short enough, after the
// learning rate has risen, or if local steps gain too little, and otherwise so rarely that trials take a hundredth of
// the time. A trial that ended in synchronous steps is remembered for a while. Values are running means, and bounds
// fall only when they are wrong by an eighth, so noise moves none of them. The controller owns it. Pure; integers only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "runtime/local_updates/controller/mode.h"
#include "runtime/local_updates/controller/round_stats.h"
#include "runtime/local_updates/controller/state_io.h"

namespace sirtaki::local_updates {

// Factors of the gain at the highest learning rate. With four ranks, four steps a merge and SGD, local steps cost a net
// of convolutions 0.03 nats, a small CNN and a transformer nothing. A transformer lost 0.15 nats with AdamW and 0.11
// with Muon; with AdamW 0.035 if only the last half of a linear decay was local, 0.007 if only the last third was.
inline constexpr std::int64_t kRateFactorSgd = 4, kRateFactorOthers = 40;

// Highest learning rates of local steps in a training whose rate falls, in permille of its highest one. In 300 steps of
// a linear decay, local steps cost the net of convolutions with SGD 0.023 nats when they began at nine tenths of the
// rate, 0.009 at three quarters, 0.006 at a half, and the transformer with AdamW 0.035 at a half, 0.007 at a third.
inline constexpr std::int64_t kMostRateSgd = 750, kMostRateOthers = 350;

struct LinkOptions {
  // All ranks are on one host. Nothing is a link then, waits are those for processors and other ranks, and steps stay
  // synchronous, so that auto changes no result there; unless gain_permille is 0, which asks for local steps.
  bool one_host = false;
  bool fixed_delay = false;  // the program fixes D, so no H hides a latency
  // Part of T that synchronous steps have to wait before local ones are worth it, with small learning rates.
  std::int64_t gain_permille = 100;
  std::int64_t rate_factor = kRateFactorSgd;
  std::int64_t most_rate_permille = kMostRateSgd;
  std::int64_t band_permille = 50;  // margin below it, at most half, before synchronous steps are worth it again
  std::int64_t margin_permille = 1250;
  std::int64_t trial_steps = 16;  // synchronous steps in a trial
  // Bits an element of the encodings of differences, in thousandths, float32 first, falling. A transfer is predicted by
  // their ratio until it is measured.
  std::vector<std::int64_t> bits_permille = {32'000, 8'000, 2'000, 1'000};
  std::int64_t drain_encoding = 0;  // drains have this one where merges have fewer bits than float32
};

class LinkBound {
 public:
  enum class Path : std::uint8_t { kSync, kLocal, kTrial };

  explicit LinkBound(LinkOptions options) : options_(std::move(options)), bits_(options_.bits_permille) {}

  // Adds a round of `steps` steps in Mode kSync or kLocal, with a delay of `delay`. A round without a measured step is
  // ignored.
  void observe(const RoundStats& stats, Mode mode, std::int64_t steps, std::int64_t delay = 0);
  // Records that time without steps has passed since the last round, as in a drain.
  void interrupted() { times_.ended_us = 0; }

  // Returns the better path; kTrial means one round of synchronous steps. `lr_permille`: the learning rate, as a part
  // of the highest one of the training. Call once after a round in which no other reason fixes the mode.
  Path path(Mode mode, std::int64_t lr_permille);

  // Returns true if local steps with an encoding save more waits in so many steps, the last ones of a training, than
  // their first merge and the drain behind them take. Call in Mode::kSync.
  bool repays(std::int64_t steps, std::int64_t encoding) const;

  // Returns true if a transfer was measured in the present mode.
  bool is_known() const { return dense_.count > 0 || sent_.count > 0; }
  // Return H and D with the present encoding; 1 and 0 if unknown. Not limited.
  std::int64_t steps() const { return std::max(steps_, steps_beyond(merge_delay_)); }
  std::int64_t delay() const { return delay_; }
  // Return H and D with an encoding, from measurements if it is the present one, else predicted. Not limited.
  std::int64_t steps_with(std::int64_t encoding) const;
  std::int64_t delay_with(std::int64_t encoding) const;
  // Returns the encoding with the most bits that hides transfers behind so many steps, with merges at most a step late
  // by their bytes; the last one if none does. More bits than at present have to fit with a margin. Requires
  // is_known().
  std::int64_t encoding_for(std::int64_t steps) const;
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

  // Times of whole steps in microseconds. The first local rounds are slow: intervals grow, bits and delays adapt.
  // Rounds therefore count only while H, D and encoding stay, and their median, since the program may evaluate between
  // steps.
  struct Times {
    Mean synchronous;                // T and the wait of a synchronous step
    std::int64_t local = 0;          // a local step; 0: not known
    std::deque<std::int64_t> steps;  // a step of each of the last local rounds, kMeanRounds at most
    std::int64_t interval = 0;       // H and D of these rounds
    std::int64_t delay = 0;
    std::int64_t ended_us = 0;  // RoundStats::now_us of the last of them; 0: something else followed
    std::int64_t age = 0;       // synchronous steps since then
    std::int64_t cost = 0;      // wait of the first synchronous rounds since then, as a ratio to T; 0: not known

    void add_local(std::int64_t now_us, std::int64_t steps_of_round, std::int64_t delay_of_round);
    void add_synchronous(std::int64_t us, std::int64_t steps_of_round);
    void forget();
    void state(StateIo& io);
  };

  // The compressed encoding before the present one, and its load; 0: none.
  struct Earlier {
    std::int64_t encoding = 0;
    std::int64_t load = 0;
  };

  bool fits(std::int64_t encoding, std::int64_t steps) const;
  std::int64_t merge_delay_with(std::int64_t encoding) const;
  // Returns the least H that hides a merge between distant hosts, 1 between near ones: fewer bits make no latency
  // shorter, more steps hide it. `delay` leaves out what D contains because steps wait, since longer intervals cost a
  // training more than such waits.
  std::int64_t steps_beyond(std::int64_t delay) const {
    return latency_.value > 0 && !options_.fixed_delay ? delay + 1 : 1;
  }
  bool is_measured(std::int64_t encoding) const { return encoding == encoding_ && sent_.count > 0; }
  // Returns the load of an encoding, given that of the present one and that of float32.
  std::int64_t load_with(std::int64_t encoding, const Mean& sent, const Mean& dense) const;
  // Returns the gain of local steps in permille.
  std::int64_t worth_permille() const;
  // `least_permille`: gain from which local steps go on.
  bool trial_is_due(std::int64_t gain_permille, std::int64_t least_permille) const;
  void change_encoding(std::int64_t encoding);
  void learn_latency(const RoundStats& stats);
  void learn_waits(const RoundStats& stats, std::int64_t steps);
  void learn_bits();
  void begin_mode(Mode mode);
  std::size_t place_of(std::int64_t encoding) const;  // its index in bits_

  const LinkOptions options_;
  // Ratios to T in 1/65536.
  Mean dense_;
  Mean cost_;
  Mean sent_;
  Mean longest_;
  Mean dense_longest_;
  Mean latency_;               // L
  std::int64_t hidden_ = 0;    // part of a transfer that M does not contain: encoding, busy processors
  Mode mode_ = Mode::kSync;    // mode of the rounds in dense_
  std::int64_t encoding_ = 0;  // that of the local rounds in sent_, longest_ and hidden_
  // Bits by which loads are predicted: those of the options, corrected by the loads of encodings that followed one
  // another. A link with a burst, for example, carries short transfers faster.
  std::vector<std::int64_t> bits_;
  Earlier before_;
  Times times_;
  std::int64_t last_sent_ = 0;    // load of the last round
  std::int64_t reference_ = 0;    // sent_ of the first local rounds with this encoding; 0: too few rounds
  std::int64_t waited_ = 0;       // total wait of synchronous steps
  std::int64_t sync_steps_ = 0;   // steps of the last synchronous round
  std::int64_t local_steps_ = 0;  // local steps since then
  bool trying_ = false;           // the synchronous rounds are a trial
  std::int64_t vain_ = 0;         // consecutive trials without gain
  bool costly_ = false;           // the previous synchronous round waited too long
  std::int64_t steps_ = 1;
  std::int64_t delay_ = 0;
  std::int64_t link_delay_ = 0;   // D for the bytes alone
  std::int64_t merge_delay_ = 0;  // D without the hidden part
};

}  // namespace sirtaki::local_updates
