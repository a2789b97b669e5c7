#include "runtime/engine/reduction/reduction.h"

#include <numeric>
#include <utility>

#include "runtime/engine/reduction/by_host.h"

namespace sirtaki::engine {
namespace {

// Returns the block of `rank` in memory of consecutive blocks of counts[r] items of `item` bytes.
Bytes block_of(Rank rank, Bytes all, const std::vector<std::int64_t>& counts, std::size_t item) {
  const auto own = counts.begin() + rank;
  const auto before = static_cast<std::size_t>(std::accumulate(counts.begin(), own, std::int64_t{0}));
  return all.subspan(before * item, static_cast<std::size_t>(*own) * item);
}

}  // namespace

Reduction::Reduction(ReductionSpec spec, ReductionDeps deps, StageNote note)
    : spec_(std::move(spec)), deps_(deps), note_(std::move(note)) {}

void Reduction::start(Done done) {
  done_ = std::move(done);
  begin();
}

void Reduction::cancel(const Status& cause) {
  status_.update(cause);
  for (std::size_t phase = 0; phase < phases(); ++phase) {
    deps_.net.cancel(spec_.tags[phase], cause);
  }
}

void Reduction::allgather(int phase, Bytes out, std::vector<std::int64_t> counts, MoveFunction<Status()> then) {
  net::CollectiveArgs args;
  args.kind = OpKind::kAllgather;
  args.dtype = DType::kU8;
  args.in = block_of(rank(), out, counts, 1);
  args.out = out;
  sent_bytes_ += static_cast<std::int64_t>(args.in.size()) * (size() - 1);
  args.recv_counts = std::move(counts);
  exchange(phase, std::move(args), std::move(then));
}

void Reduction::alltoall(int phase, ConstBytes in, std::vector<std::int64_t> send, Bytes out,
                         std::vector<std::int64_t> receive, MoveFunction<Status()> then) {
  net::CollectiveArgs args;
  args.kind = OpKind::kAlltoall;
  args.dtype = DType::kU8;
  args.in = in;
  args.out = out;
  sent_bytes_ += static_cast<std::int64_t>(in.size()) - send[static_cast<std::size_t>(rank())];
  args.send_counts = std::move(send);
  args.recv_counts = std::move(receive);
  exchange(phase, std::move(args), std::move(then));
}

void Reduction::reduce_scatter(int phase, Bytes inout, std::vector<std::int64_t> counts, MoveFunction<Status()> then) {
  net::CollectiveArgs args;
  args.kind = OpKind::kReduceScatter;
  args.dtype = DType::kF32;
  args.in = inout;
  args.out = block_of(rank(), inout, counts, sizeof(float));
  sent_bytes_ += static_cast<std::int64_t>(inout.size() - args.out.size());
  args.recv_counts = std::move(counts);
  exchange(phase, std::move(args), std::move(then));
}

void Reduction::allreduce(int phase, Bytes inout, MoveFunction<Status()> then) {
  net::CollectiveArgs args;
  args.dtype = DType::kF32;
  reduce(phase, std::move(args), inout, std::move(then));
}

void Reduction::allreduce_largest(int phase, Bytes inout, MoveFunction<Status()> then) {
  net::CollectiveArgs args;
  args.dtype = DType::kI8;
  args.op = ReduceOp::kMax;
  reduce(phase, std::move(args), inout, std::move(then));
}

void Reduction::reduce(int phase, net::CollectiveArgs args, Bytes inout, MoveFunction<Status()> then) {
  args.kind = OpKind::kAllreduce;
  args.exchange_bytes = spec_.exchange_bytes;
  args.in = inout;
  args.out = inout;
  sent_bytes_ += 2 * (size() - 1) * static_cast<std::int64_t>(inout.size()) / size();
  allreduced_ += net().traffic(args);
  exchange(phase, std::move(args), std::move(then));
}

void Reduction::exchange(int phase, net::CollectiveArgs args, MoveFunction<Status()> then) {
  args.tag = spec_.tags[static_cast<std::size_t>(phase)];
  args.priority = spec_.priority;
  Done done = exchanged(static_cast<std::int64_t>(args.in.size()), std::move(then));
  deps_.net.start(std::move(args), std::move(done));
}

Done Reduction::exchanged(std::int64_t bytes, MoveFunction<Status()> then) {
  note_(ReductionStage::kWire, bytes);
  return waited([this, then = std::move(then)]() mutable {
    note_(ReductionStage::kCode, -1);
    return then();
  });
}

Done Reduction::waited(MoveFunction<Status()> then) {
  exchanging_ = true;
  return [self = shared_from_this(), then = std::move(then)](const Status& status) mutable {
    self->on_exchanged(status, then);
  };
}

// A collective that ended before cancel() reports success afterwards, so status_ decides, not `status`.
void Reduction::on_exchanged(const Status& status, MoveFunction<Status()>& then) {
  exchanging_ = false;
  status_.update(status);
  if (status_.ok()) {
    status_.update(then());
  }
  if (!exchanging_) {
    std::exchange(done_, {})(status_);
  }
}

std::shared_ptr<Reduction> make_reduction(ReductionSpec spec, ReductionDeps deps, StageNote note) {
  const net::HostGroups* groups = deps.net.host_groups();
  if (groups != nullptr && ByHost::supports(spec.reduction)) {
    return std::make_shared<ByHost>(std::move(spec), deps, std::move(note), *groups);
  }
  switch (spec.reduction) {
#define SRT_REDUCTION(name, Id, number, most_ranks) \
  case ReductionKind::k##Id:                        \
    return make_##name##_reduction(std::move(spec), deps, std::move(note));
#include "runtime/base/reductions.inc"
#undef SRT_REDUCTION
  }
  return nullptr;
}

// Streams run dense partitions as one allreduce themselves. The signature is that of all rows.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
std::shared_ptr<Reduction> make_dense_reduction(ReductionSpec /*spec*/, ReductionDeps /*deps*/, StageNote /*note*/) {
  return nullptr;
}

}  // namespace sirtaki::engine
