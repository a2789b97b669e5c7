// FragmentNorms: norms of the differences of a fragment, and the weight of each rank in its next merge.
//
// A difference is excluded if its norm is far above the past norms of its rank, and as far above the present norms of
// the other ranks (compare EDiT, Cheng et al., 2024). A shard that is always harder, a restarted learning rate, and
// other events on all ranks are therefore no anomalies. Norms are compared as log2(norm / (mean learning rate *
// n^0.75)) for a difference of n steps, because noise grows with the root of n, and drift with n.
// Every rank takes a copy at the snapshot of a fragment. It computes weights with the copy after all reports have
// arrived, and before anything is sent, so decisions in between and the times of reports have no effect. All ranks
// compute the same weights, so each also knows their sum. The guards own the norms and update them; the engine has
// copies. Pure value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/local_updates/controller/round_stats.h"
#include "runtime/local_updates/controller/state_io.h"

namespace sirtaki::local_updates {

// The first rounds are averaged plainly, so that a few suffice.
struct NormOptions {
  bool on = true;                         // off: only differences that are not finite are excluded
  std::int64_t z_permille = 3000;         // threshold in standard deviations
  std::int64_t deviation_permille = 500;  // smallest standard deviation, of log2
  std::int64_t memory_rounds = 50;        // length of the running mean; 1/50 is the 0.02 of EDiT
  std::int64_t warmup_rounds = 20;        // rounds before a rank is judged
  // Differences longer than this multiple of the median of the ranks that count are scaled down to it, from the first
  // round on, where at least three count; 0: never. SparseLoCo (2025) clips to the median itself, which scales half of
  // the healthy ranks.
  std::int64_t clip_permille = 2000;
};

class FragmentNorms {
 public:
  FragmentNorms(const NormOptions& options, std::size_t ranks);

  // Returns the merge without the norm of the mean. `steps` is the number of steps that the differences cover. All
  // weights are 0 if most differences are not finite. kCorrupt: an invalid report.
  Result<Merge> weigh(int fragment, std::int64_t steps, std::vector<RankReport> ranks) const;

  // Learns from a complete merge; excluded differences are ignored.
  void learn(const Merge& merge);
  void forget();
  // Renumbers ranks. `old_rank[r]` is the previous number of rank r; -1: a new member.
  void reform(const std::vector<int>& old_rank);
  void state(StateIo& io);

 private:
  // Log norms of a rank in 1/65536.
  struct Baseline {
    std::int64_t rounds = 0;
    std::int64_t mean = 0;
    std::int64_t variance = 0;  // 1/65536^2
  };

  double most_norm2(const Merge& merge) const;
  bool is_far(const Baseline& baseline, std::int64_t norm, std::int64_t others) const;

  NormOptions options_;
  std::vector<Baseline> baselines_;  // indexed by rank
  bool rates_known_ = false;         // learning rates were known in the learnt merges
};

// Returns log2(learning rates * n^-0.25), the unit of norms. Without known rates it assumes n steps at a rate of 1.
// nullopt: a rate of 0, at which nothing can be learnt.
std::optional<std::int64_t> log_unit(const Merge& merge);

}  // namespace sirtaki::local_updates
