#include "runtime/net/collectives/hierarchy.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/net/collectives/algorithms.h"
#include "runtime/net/collectives/combine.h"
#include "runtime/net/collectives/reducer.h"

namespace sirtaki::net {
namespace {

// Group numbers of SubgroupLink: the ranks of the host, then one group per share.
constexpr std::uint32_t kLocalGroup = 0;

std::int64_t elements_of(const Block& block, DType dtype) {
  return static_cast<std::int64_t>(block.size / dtype_size(dtype));
}

std::vector<Block> shares_of(const CollectiveArgs& args, const Hosts& hosts) {
  const std::size_t item = dtype_size(args.dtype);
  return equal_blocks(args.in.size() / item, item, hosts.shares());
}

// Returns the limit of one exchange among the owners of a share, for the limit among all ranks. Beyond the bytes of two
// steps, all ranks send (a * a * h - 2) / (h - 2) times as many as the owners of all a shares on h hosts; owners on two
// hosts send none. The result is at most `limit`, or net.exchange_bytes if that is more. 0 stays: the caller wants two
// steps.
std::size_t limit_of_owners(std::size_t limit, const DirectOptions& options, const Hosts& hosts) {
  if (limit == 0 || limit >= kUsualExchange) {
    return limit;
  }
  const std::size_t most = std::max(limit, options.exchange_bytes);
  const auto count = static_cast<std::size_t>(hosts.count());
  if (count <= 2) {
    return most;
  }
  const auto shares = static_cast<std::size_t>(hosts.shares());
  const std::size_t all = shares * shares * count - 2;
  return limit > kUsualExchange / all ? most : std::min(most, limit * all / ((count - 2) * shares));
}

}  // namespace

std::unique_ptr<SubgroupLink> local_part(PointToPoint& link, const Hosts& hosts) {
  const auto host = static_cast<std::size_t>(hosts.host_of(link.rank()));
  return std::make_unique<SubgroupLink>(link, hosts.ranks()[host], kLocalGroup, true);
}

// One allreduce and its phase.
struct HierarchicalCollectives::Run {
  CollectiveArgs args;
  Done done;
  std::vector<Block> shares;               // bytes of the whole, by share
  Block own;                               // the shares of this rank, which are consecutive
  std::vector<std::int64_t> local_counts;  // elements, by place on this host
  double here = 1.0;                       // divisor of the sums of a host
  std::size_t missing = 0;                 // shares of this rank that are still being exchanged
  Status status;

  CollectiveArgs phase(OpKind kind, ConstBytes in, Bytes out) const {
    CollectiveArgs part;
    part.kind = kind;
    part.tag = args.tag;
    part.dtype = args.dtype;
    part.op = args.op == ReduceOp::kAverage ? ReduceOp::kSum : args.op;
    part.priority = args.priority;
    part.in = in;
    part.out = out;
    return part;
  }
  Bytes own_out() const { return args.out.subspan(own.begin, own.size); }
};

bool HierarchicalCollectives::fits(const Hosts& hosts) {
  return hosts.several_with_several() && hosts.shares() < static_cast<int>(SubgroupLink::kMaxGroups);
}

HierarchicalCollectives::HierarchicalCollectives(PointToPoint& link, const DirectOptions& options,
                                                 std::shared_ptr<SharedMemory> local)
    : link_(link),
      options_(options),
      workshop_(DirectCollectives::make_workshop(link.loop(), options)),
      flat_(link, options, nullptr, workshop_),
      local_(group_of(local_part(link, options.hosts), std::move(local))) {
  const Hosts& hosts = options_.hosts;
  SRT_CHECK(fits(hosts));
  groups_.hosts = hosts;
  groups_.host = hosts.host_of(link.rank());
  groups_.here = local_.collectives.get();
  for (int share = 0; share < hosts.shares(); ++share) {
    places_.push_back(hosts.owner_place(groups_.host, share));
    if (places_.back() == local_.link->rank()) {
      const auto group = static_cast<std::uint32_t>(share) + kLocalGroup + 1;
      owners_.push_back(group_of(std::make_unique<SubgroupLink>(link, hosts.owners(share), group, false), nullptr));
      groups_.own.push_back({share, owners_.back().collectives.get()});
    }
  }
}

HierarchicalCollectives::Group HierarchicalCollectives::group_of(std::unique_ptr<SubgroupLink> link,
                                                                 std::shared_ptr<SharedMemory> shared) const {
  Group group;
  group.link = std::move(link);
  group.collectives = std::make_unique<DirectCollectives>(*group.link, options_.flat(), std::move(shared), workshop_);
  return group;
}

Caps HierarchicalCollectives::caps() const {
  Caps caps;
  caps.sums_by_host = true;
  return caps;
}

bool HierarchicalCollectives::goes_by_host(const CollectiveArgs& args) const {
  return args.kind == OpKind::kAllreduce && check_args(args, rank(), size()).ok() &&
         !is_one_exchange(args, options_, size());
}

// In one exchange every rank of the fullest host sends all data to every rank of other hosts. The owners of all shares
// send at the same time.
Traffic HierarchicalCollectives::traffic(const CollectiveArgs& allreduce) const {
  if (!goes_by_host(allreduce)) {
    const int here = groups_.hosts.shares();
    return {static_cast<double>(here) * (size() - here) * static_cast<double>(allreduce.in.size()), 1};
  }
  Traffic all;
  CollectiveArgs args;
  args.dtype = allreduce.dtype;
  args.exchange_bytes = limit_of_owners(allreduce.exchange_bytes, options_, groups_.hosts);
  for (const Block& share : shares_of(allreduce, groups_.hosts)) {
    args.in = allreduce.in.subspan(share.begin, share.size);
    const Traffic one = owners_.front().collectives->traffic(args);
    all.bytes += one.bytes;
    all.exchanges = std::max(all.exchanges, one.exchanges);
  }
  return all;
}

void HierarchicalCollectives::start(CollectiveArgs args, Done done) {
  SRT_IN_LOOP(link_.loop());
  const OpTag tag = args.tag;
  if (by_host_.contains(tag) || flat_.in_flight(tag)) {
    link_.loop().post([tag, moved = std::move(done)]() mutable {
      moved(invalid_argument("tag " + std::to_string(tag.value) + " is already in flight"));
    });
    return;
  }
  if (!goes_by_host(args)) {
    flat_.start(std::move(args), std::move(done));
    return;
  }
  by_host_.insert(tag);
  const auto run = std::make_shared<Run>();
  run->args = std::move(args);
  run->done = std::move(done);
  run->here = host_divisor(run->args, groups_.hosts);
  run->shares = shares_of(run->args, groups_.hosts);
  run->local_counts.resize(static_cast<std::size_t>(local_.link->size()));
  for (std::size_t share = 0; share < run->shares.size(); ++share) {
    run->local_counts[static_cast<std::size_t>(places_[share])] += elements_of(run->shares[share], run->args.dtype);
  }
  run->own.begin = run->shares[static_cast<std::size_t>(groups_.own.front().number)].begin;
  const Block& last = run->shares[static_cast<std::size_t>(groups_.own.back().number)];
  run->own.size = last.begin + last.size - run->own.begin;
  reduce_here(run);
}

// Errors of the operations of a phase come through the loop, which may outlive this object.
Done HierarchicalCollectives::then(Step step, const std::shared_ptr<Run>& run) {
  return [this, alive = std::weak_ptr<const bool>(alive_), step, run](const Status& status) {
    if (!alive.expired()) {
      (this->*step)(run, status);
    }
  };
}

void HierarchicalCollectives::reduce_here(const std::shared_ptr<Run>& run) {
  CollectiveArgs args = run->phase(OpKind::kReduceScatter, run->args.in, run->own_out());
  args.recv_counts = run->local_counts;
  if (run->here > 1.0) {
    args.op = ReduceOp::kAverage;
    args.divisor = run->here;
  }
  local_.collectives->start(std::move(args), then(&HierarchicalCollectives::exchange, run));
}

void HierarchicalCollectives::exchange(const std::shared_ptr<Run>& run, const Status& reduced) {
  if (!reduced.ok()) {
    finish(run, reduced);
    return;
  }
  run->missing = owners_.size();
  for (std::size_t i = 0; i < owners_.size(); ++i) {
    const Block& share = run->shares[static_cast<std::size_t>(groups_.own[i].number)];
    const Bytes memory = run->args.out.subspan(share.begin, share.size);
    CollectiveArgs args = run->phase(OpKind::kAllreduce, memory, memory);
    args.op = run->args.op;
    args.divisor = (run->args.divisor > 0 ? run->args.divisor : size()) / run->here;
    args.exchange_bytes = limit_of_owners(run->args.exchange_bytes, options_, groups_.hosts);
    owners_[i].collectives->start(std::move(args), then(&HierarchicalCollectives::spread_here, run));
  }
}

// Called after each share of this rank; the last one starts the next phase.
void HierarchicalCollectives::spread_here(const std::shared_ptr<Run>& run, const Status& exchanged) {
  run->status.update(exchanged);
  if (--run->missing > 0) {
    return;
  }
  if (!run->status.ok()) {
    finish(run, run->status);
    return;
  }
  CollectiveArgs args = run->phase(OpKind::kAllgather, run->own_out(), run->args.out);
  args.recv_counts = run->local_counts;
  local_.collectives->start(std::move(args), then(&HierarchicalCollectives::finish, run));
}

void HierarchicalCollectives::finish(const std::shared_ptr<Run>& run, const Status& status) {
  by_host_.erase(run->args.tag);
  if (!status.ok()) {
    // Ranks of this host that are further ahead may still publish blocks for this rank.
    local_.collectives->cancel(run->args.tag, status);
  }
  Done done = std::move(run->done);
  done(status);
}

void HierarchicalCollectives::cancel(TagGroup tags, Status cause) {
  for (const Group& group : owners_) {
    group.collectives->cancel(tags, cause);
  }
  local_.collectives->cancel(tags, cause);
  flat_.cancel(tags, std::move(cause));
}

void HierarchicalCollectives::forget(const TagGroup& tags) {
  for (const Group& group : owners_) {
    group.collectives->forget(tags);
  }
  local_.collectives->forget(tags);
  flat_.forget(tags);
}

void HierarchicalCollectives::abort(Status cause) {
  for (const Group& group : owners_) {
    group.collectives->abort(cause);
  }
  local_.collectives->abort(cause);
  flat_.abort(std::move(cause));
}

}  // namespace sirtaki::net
