// FragmentNorms: what is known of the norms of a fragment's differences, and what each rank's next one counts.
//
// A rank's difference is left out if its norm is far above those that it had before, and as far above the other ranks'
// now (after EDiT, Cheng et al., 2024). So a shard that is always harder, a learning rate that starts anew and whatever
// else befalls all ranks are no anomalies. Norms are compared as log2(norm / (mean learning rate * n^0.75)), where n
// steps are covered: noise grows with the root of n, drift with n.
// Every rank takes a copy at a fragment's snapshot and weighs by it once all reports are there, before anything is
// sent: it does not matter then what was decided in between, nor when reports come. Weights in which all ranks agree
// also tell each of them the sum of weights. Owned by: the guards, whose decisions teach it; copies by the engine. Pure
// value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/local_updates/controller/round_stats.h"
#include "runtime/local_updates/controller/state_io.h"

namespace sirtaki::local_updates {

// The first rounds are averaged plainly, so a few are enough to judge by.
struct NormOptions {
  bool on = true;                         // off: nobody is left out but those whose difference is not finite
  std::int64_t z_permille = 3000;         // standard deviations that are far
  std::int64_t deviation_permille = 500;  // least standard deviation, of log2
  std::int64_t memory_rounds = 50;        // of the running mean; 1/50 is EDiT's 0.02
  std::int64_t warmup_rounds = 20;        // before a rank is judged
};

class FragmentNorms {
 public:
  FragmentNorms(const NormOptions& options, std::size_t ranks);

  // All but the norm of the mean. `steps`: that the differences cover. Where most ranks' differences are not finite all
  // weights are 0. kCorrupt: a report that cannot be.
  Result<Merge> weigh(int fragment, std::int64_t steps, std::vector<RankReport> ranks) const;

  // A complete merge; those that were left out teach nothing.
  void learn(const Merge& merge);
  void forget();
  // `old_rank[r]`: who rank r was; -1: it has just joined.
  void reform(const std::vector<int>& old_rank);
  void state(StateIo& io);

 private:
  // A rank's log norms, 1/65536.
  struct Baseline {
    std::int64_t rounds = 0;
    std::int64_t mean = 0;
    std::int64_t variance = 0;  // 1/65536^2
  };

  bool is_far(const Baseline& baseline, std::int64_t norm, std::int64_t others) const;

  NormOptions options_;
  std::vector<Baseline> baselines_;  // by rank
  bool rates_known_ = false;         // of what was learnt
};

// log2(learning rates * n^-0.25), the unit of norms. Without known rates: of n steps at a rate of 1. nullopt: nothing
// can be learnt at a rate of 0.
std::optional<std::int64_t> log_unit(const Merge& merge);

}  // namespace sirtaki::local_updates
