// ByHost: hierarchical reduction. The ranks of a host sum first, and only the traffic between hosts is compressed.
//
// Used if several hosts have several ranks: a payload then leaves a host once, whatever its number of ranks. It wraps
// the reductions that send payloads from rank to rank. Reductions of dense sums do not need it, because their allreduce
// is hierarchical. Four steps:
//   1. The ranks of a host agree on the state of each slice.
//   2. They reduce-scatter shares of the gradients.
//   3. The owners of each share, one on each host, run the wrapped reduction, all shares at once.
//   4. An allgather on the host distributes the results.
//
// Sums are rounded in another, equally fixed order; divisors count all ranks. The tensor alone determines the stripes
// of each share (compression/codec_state.h). The residuals of a rank belong to the sums of its own shares.
//
// A share takes effect wholly or not at all. Its residuals change as soon as it has been exchanged, even if another
// share is corrupt, or the partition is cancelled before the final allgather. A slice that is not finite on some rank
// becomes NaN everywhere; if only a sum overflows, the neighbouring stripes of its owners become NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/engine/reduction/slices.h"
#include "runtime/net/link/hosts.h"

namespace sirtaki::engine {

// Returns the stripes that `rank` of `ranks` ranks owns of tensor number `tensor` of a stream. `groups` is null unless
// hosts sum first.
compression::Ownership ownership_of(std::int64_t stripe, Rank rank, int ranks, const net::HostGroups* groups,
                                    int tensor);

// Returns the dependencies of a reduction among the ranks of this host.
ReductionDeps host_deps(const ReductionDeps& deps, const net::HostGroups& groups);

// Returns a callback for `count` concurrent exchanges, each of which calls it once with its result. Calls `failed` with
// every error, and `all` once with the first error after the last exchange has ended; captures of `all` live until
// then.
std::function<void(const Status&)> when_all(std::size_t count, Done all, std::function<void(const Status&)> failed);

class ByHost final : public Reduction {
 public:
  // Returns true if this reduction is hierarchical whenever there are groups.
  static bool supports(ReductionKind reduction);

  // `groups` are those of `deps.net`.
  ByHost(ReductionSpec spec, ReductionDeps deps, StageNote note, const net::HostGroups& groups);

  void cancel(const Status& cause) override;

 private:
  // Neighbouring stripes of a slice that belong to the same share.
  struct Run {
    std::size_t slice;
    std::int64_t offset;  // elements in the tensor
    std::byte* gradient;
    std::size_t bytes;
    int share;
    std::size_t at;  // bytes in the sums
  };

  void begin() override;
  std::size_t phases() const override { return 3; }
  void lay_out();
  Status reduce_here();
  Status exchange();
  std::vector<ReducedSlice> slices_of(const net::HostGroups::Share& share);
  Status spread();
  bool own(const Run& run) const;
  void cancel_exchanges(const Status& cause);

  const net::HostGroups& groups_;
  const int job_ranks_;
  Slices slices_;
  std::vector<Run> runs_;                  // sorted by share
  std::vector<std::int64_t> here_counts_;  // elements of sums_ by local rank
  std::size_t sum_bytes_ = 0;
  BufferPool::Buffer states_;
  BufferPool::Buffer sums_;  // for exchanges on the host; between hosts, sums stand in place of the gradients
  std::deque<std::vector<const compression::Coder*>> senders_;  // storage of ReducedSlice::senders
  std::vector<std::weak_ptr<Reduction>> exchanges_;  // one for each own share; their callbacks own them and this
};

}  // namespace sirtaki::engine
