#include "runtime/net/collectives/direct.h"

#include <string>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/net/collectives/algorithms.h"
#include "runtime/net/link/subgroup_link.h"

namespace sirtaki::net {
namespace {

// Group number of SubgroupLink. Subsets share one, because their operations differ in their tags.
constexpr std::uint32_t kPartGroup = SubgroupLink::kMaxGroups - 1;

class PartCollectives final : public Collectives {
 public:
  PartCollectives(PointToPoint& whole, std::vector<Rank> ranks, const DirectOptions& options,
                  std::shared_ptr<Workshop> workshop)
      : link_(whole, std::move(ranks), kPartGroup, whole.one_host()),
        collectives_(link_, options, nullptr, std::move(workshop)) {}

  Caps caps() const override { return collectives_.caps(); }
  Rank rank() const override { return collectives_.rank(); }
  int size() const override { return collectives_.size(); }
  Rank job_rank(Rank rank) const override { return collectives_.job_rank(rank); }
  Traffic traffic(const CollectiveArgs& allreduce) const override { return collectives_.traffic(allreduce); }
  void start(CollectiveArgs args, Done done) override { collectives_.start(std::move(args), std::move(done)); }
  void cancel(TagGroup tags, Status cause) override { collectives_.cancel(tags, std::move(cause)); }
  void forget(const TagGroup& tags) override { collectives_.forget(tags); }
  void abort(Status cause) override { collectives_.abort(std::move(cause)); }

 private:
  SubgroupLink link_;
  DirectCollectives collectives_;
};

}  // namespace

std::shared_ptr<Operation> make_operation(Operation::Setup setup) {
  if (goes_in_a_batch(setup)) {
    return make_batched_allreduce(std::move(setup));
  }
  if (goes_through_shared_memory(setup)) {
    return make_shared_operation(std::move(setup));
  }
  switch (setup.args.kind) {
    case OpKind::kAllreduce:
      return make_allreduce(std::move(setup));
    case OpKind::kAllgather:
      return make_allgather(std::move(setup));
    case OpKind::kBroadcast:
      return make_broadcast(std::move(setup));
    case OpKind::kAlltoall:
      return make_alltoall(std::move(setup));
    case OpKind::kReduceScatter:
      return make_reducescatter(std::move(setup));
    case OpKind::kBarrier:
      return make_barrier(std::move(setup));
  }
  raise_bug(__FILE__, __LINE__, "operation kind");
}

std::shared_ptr<Workshop> DirectCollectives::make_workshop(Loop& loop, const DirectOptions& options) {
  return std::make_shared<Workshop>(Workshop{StagingPool(options.keep_staging_bytes), TurnQueue(loop)});
}

DirectCollectives::DirectCollectives(PointToPoint& link, const DirectOptions& options,
                                     std::shared_ptr<SharedMemory> shared, std::shared_ptr<Workshop> workshop)
    : link_(link),
      options_(options),
      shared_(std::move(shared)),
      workshop_(workshop ? std::move(workshop) : make_workshop(link.loop(), options)) {
  if (shared_) {
    batches_ = std::make_shared<BatchExchange>(
        link, shared_, [this](OpTag tag, const BatchExchange::Announced& announced) { compare(tag, announced); });
  }
}

DirectCollectives::~DirectCollectives() {
  const Status gone(Code::kShutdown, "the collectives were closed");
  for (auto& [tag, operation] : operations_) {
    operation->drop();
    operation->fail(gone);
  }
}

std::unique_ptr<Collectives> DirectCollectives::part(const std::vector<Rank>& ranks) {
  return std::make_unique<PartCollectives>(link_, ranks, options_.flat(), workshop_);
}

void DirectCollectives::reply(Done done, Status status) {
  link_.loop().post([moved = std::move(done), status = std::move(status)]() mutable { moved(status); });
}

Traffic DirectCollectives::traffic(const CollectiveArgs& allreduce) const {
  if (!is_one_exchange(allreduce, options_, size())) {
    return Collectives::traffic(allreduce);
  }
  return {static_cast<double>(size() - 1) * static_cast<double>(allreduce.in.size()), 1};
}

SharedBuffer DirectCollectives::allocate_shared(std::size_t bytes) {
  return shared_ && bytes > options_.exchange_bytes ? shared_->allocate_shared(bytes) : SharedBuffer();
}

void DirectCollectives::start(CollectiveArgs args, Done done) {
  SRT_IN_LOOP(link_.loop());
  Status refused = aborted_;
  refused.update(check_args(args, rank(), size()));
  const OpTag tag = args.tag;
  if (refused.ok() && operations_.contains(tag)) {
    refused = invalid_argument("tag " + std::to_string(tag.value) + " is already in flight");
  }
  if (!refused.ok()) {
    reply(std::move(done), std::move(refused));
    return;
  }
  Operation::Setup setup;
  setup.link = &link_;
  setup.pool = &workshop_->pool;
  setup.options = &options_;
  setup.turns = &workshop_->turns;
  setup.shared = shared_;
  setup.batches = batches_.get();
  setup.args = std::move(args);
  setup.finished = [this, tag, moved = std::move(done)](Status status) mutable {
    operations_.erase(tag);
    moved(std::move(status));
  };
  const auto operation = make_operation(std::move(setup));
  operations_.emplace(tag, operation);
  if (batches_) {
    batches_->open();
  }
  operation->run();
  if (const auto announced = batches_ ? batches_->announced(tag) : std::nullopt) {
    compare(tag, *announced);
  }
}

// Ends an operation that is not in a batch here, but on another rank. No message of it would ever meet one of that
// rank.
void DirectCollectives::compare(OpTag tag, const BatchExchange::Announced& announced) {
  const auto found = operations_.find(tag);
  if (found == operations_.end() || found->second->batched()) {
    return;
  }
  const auto operation = found->second;
  const Expectation here = operation->expectation();
  const Status cause = mismatch_error(job_rank(announced.peer), here, announced.there);
  batches_->refuse(tag, here, cause);
  operation->fail(cause);
}

std::vector<std::shared_ptr<Operation>> DirectCollectives::in_flight_of(const TagGroup& tags) const {
  std::vector<std::shared_ptr<Operation>> found;
  if (tags.single()) {
    const auto only = operations_.find(tags.first());
    if (only != operations_.end()) {
      found.push_back(only->second);
    }
    return found;
  }
  for (const auto& [tag, operation] : operations_) {
    if (tags.contains(tag)) {
      found.push_back(operation);
    }
  }
  return found;
}

void DirectCollectives::cancel(TagGroup tags, Status cause) {
  SRT_IN_LOOP(link_.loop());
  const auto found = in_flight_of(tags);
  link_.cancel(tags, cause);
  if (batches_) {
    batches_->cancel(tags, cause);
  }
  for (const auto& operation : found) {
    operation->fail(cause);
  }
  if (shared_) {
    shared_->drop(tags);
  }
}

void DirectCollectives::forget(const TagGroup& tags) {
  SRT_IN_LOOP(link_.loop());
  link_.forget(tags);
  if (shared_) {
    batches_->forget(tags);
    shared_->forget(tags);
  }
}

void DirectCollectives::abort(Status cause) {
  SRT_IN_LOOP(link_.loop());
  aborted_.update(cause);
  std::vector<std::shared_ptr<Operation>> all;
  for (auto& [tag, operation] : operations_) {
    all.push_back(operation);
  }
  for (const auto& operation : all) {
    operation->fail(aborted_);
  }
}

}  // namespace sirtaki::net
