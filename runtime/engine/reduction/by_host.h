// ByHost: the ranks of a host sum up first, and what leaves the host is compressed.
//
// For: reductions in which payloads go from rank to rank, where several hosts have several ranks; so a payload leaves a
// host once, whatever their number. Those that reduce dense sums need it not: their allreduce goes host by host.
// Four steps. What the ranks of a host have of each slice; a reduce-scatter of shares of the gradients on the host; the
// reduction itself among the owners of each share, one a host, all shares at once; an allgather on the host. Which
// stripes are whose share follows from the tensor alone (compression/memory.h). Sums are of another, equally fixed
// rounding; divisors are those of all ranks. A rank's residual is of the sums of its own shares. Each share happens
// wholly or not at all, and its residuals count as soon as it has been exchanged: where another share is corrupt, or
// the partition is cancelled on the way back to the host's other ranks, they have moved. A slice that some rank has not
// finite is not anywhere; where only a sum is too large, the owners' neighbouring stripes around it are NaN.
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

// Of tensor number `tensor` of a stream, on one of so many ranks. `groups`: where hosts sum up first, else null.
compression::Ownership ownership_of(std::int64_t stripe, Rank rank, int ranks, const net::HostGroups* groups,
                                    int tensor);

// What a reduction among the ranks of this host works with.
ReductionDeps host_deps(const ReductionDeps& deps, const net::HostGroups& groups);

// For the exchanges of a rank's shares, `count` of them: each calls it once with how it has ended. `failed` hears every
// error, `all`, when the last one has ended, the first of them. It lives until then, and so does what `all` holds.
std::function<void(const Status&)> when_all(std::size_t count, Done all, std::function<void(const Status&)> failed);

class ByHost final : public Reduction {
 public:
  // Whether the reduction goes so where there are groups.
  static bool supports(ReductionKind reduction);

  // `deps.net` has these groups.
  ByHost(ReductionSpec spec, ReductionDeps deps, StageNote note, const net::HostGroups& groups);

  void cancel(const Status& cause) override;

 private:
  // Neighbouring stripes of a share.
  struct Run {
    std::size_t slice;
    std::int64_t offset;  // in the tensor
    std::byte* gradient;
    std::size_t bytes;
    int share;
    std::size_t at;  // in the sums
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
  std::vector<Run> runs_;                  // by share
  std::vector<std::int64_t> here_counts_;  // elements of the sums, by place on the host
  std::size_t sum_bytes_ = 0;
  BufferPool::Buffer states_;
  BufferPool::Buffer sums_;  // only on the host: what is exchanged is in the place of the gradients
  std::deque<std::vector<const compression::Coder*>> senders_;  // of the exchanges' slices that have them
  std::vector<std::weak_ptr<Reduction>> exchanges_;  // of the own shares; their callbacks hold them, and this
};

}  // namespace sirtaki::engine
