#include "runtime/net/device/nccl/nccl_collectives.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/net/device/nccl/calls.h"

namespace sirtaki::net::nccl {
namespace {

// Reserved for end_all(), which records an event even if all others are in use.
constexpr std::size_t kSpareEvents = 2;

std::string described(const CollectiveArgs& args) {
  return std::string(op_kind_name(args.kind)) + " with tag " + std::to_string(args.tag.value);
}

CommunicatorOptions of_rank(const NcclOptions& options) {
  CommunicatorOptions communicator = options.communicator;
  communicator.job_rank = options.rank;
  return communicator;
}

std::unique_ptr<Teardown> make_threads(const NcclCollectives::Parts& parts, Duration timeout) {
  return parts.teardown != nullptr ? nullptr : std::make_unique<ThreadTeardown>(parts.device, parts.log, timeout);
}

}  // namespace

NcclCollectives::NcclCollectives(const Parts& parts, const NcclOptions& options)
    : parts_(parts),
      options_(options),
      threads_(make_threads(parts, options.end_timeout)),
      teardown_(threads_ ? *threads_ : *parts.teardown),
      connections_(parts.loop, of_rank(options),
                   [this](const CommunicatorOptions& made, IdExchange& ids) {
                     return std::make_unique<Communicator>(parts_.loop, parts_.api, ids, teardown_, parts_.log, made);
                   }),
      pause_(options.communicator.first_poll) {}

Result<std::unique_ptr<NcclCollectives>> NcclCollectives::create(const Parts& parts, const NcclOptions& options) {
  std::unique_ptr<NcclCollectives> made(new NcclCollectives(parts, options));
  SRT_TRY(made->prepare());
  return made;
}

// Creates everything that may synchronize with the device, while no collective is on it.
Status NcclCollectives::prepare() {
  SRT_ASSIGN(events_, device::EventPool::create(parts_.device, options_.most_in_flight + kSpareEvents));
  connections_.add(kJobSet, "job", {rank(), size()}, &parts_.ids);
  if (options_.host_size > 0) {
    SRT_CHECK(options_.host_size == 1 || parts_.host_ids != nullptr);
    connections_.add(kHostsSet, "host", {options_.host_rank, options_.host_size},
                     options_.host_size > 1 ? parts_.host_ids : nullptr);
  }
  // Behind the kernels of a step, a stream of normal priority would not overlap with them.
  SRT_ASSIGN(stream_, parts_.device.make_stream(device::Priority::kHigh));
  return {};
}

NcclCollectives::~NcclCollectives() {
  self_.reset();
  parts_.loop.cancel(timer_);
  connections_.clear();
  threads_.reset();
  if (stream_.native != nullptr) {
    parts_.device.destroy(stream_);
  }
}

Caps NcclCollectives::caps() const {
  Caps caps;
  caps.ordered = true;
  caps.rank_order_sums = false;
  return caps;
}

void NcclCollectives::reply(Done done, Status status) {
  parts_.loop.post([moved = std::move(done), status = std::move(status)]() mutable { moved(status); });
}

Done NcclCollectives::unless_gone(void (NcclCollectives::*then)(const Status&)) {
  return [weak = std::weak_ptr(self_), generation = generation_, then](const Status& status) {
    const auto self = weak.lock();
    if (self && (*self)->generation_ == generation) {
      ((*self)->*then)(status);
    }
  };
}

// ---- communicators ----

std::vector<LaunchSet> NcclCollectives::with(LaunchSet set) const {
  return set == kJobSet && connections_.has(kHostsSet) ? std::vector{kJobSet, kHostsSet} : std::vector{set};
}

void NcclCollectives::add_set(LaunchSet set, const std::string& name, const Connections::Place& place,
                              IdExchange& ids) {
  SRT_IN_LOOP(parts_.loop);
  SRT_CHECK(!connections_.has(set));
  connections_.add(set, name, place, &ids);
}

void NcclCollectives::connect_set(LaunchSet set, Done done) {
  SRT_IN_LOOP(parts_.loop);
  SRT_CHECK(connections_.has(set) && !connections_.closed(set).ok());
  if (!ended_.ok()) {
    reply(std::move(done), ended_);
    return;
  }
  SRT_CHECK(queue_.empty() || !queue_.back().open);
  Group& group = queue_.emplace_back();
  group.connecting = Connecting{set, std::move(done)};
  group.open = false;
  launch_next();
}

void NcclCollectives::connected(const Status& status) {
  launching_ = false;
  Connecting made = std::move(*queue_.front().connecting);
  queue_.pop_front();
  for (const LaunchSet set : with(made.set)) {
    if (status.ok()) {
      connections_.open(set);
    } else {
      connections_.shut(set, status);
    }
  }
  drop_unused();
  reply(std::move(made.done), connections_.closed(made.set));
  launch_next();
}

void NcclCollectives::drop_set(LaunchSet set, const Status& cause) {
  SRT_IN_LOOP(parts_.loop);
  if (!ended_.ok()) {
    return;  // close() or abort() ends all
  }
  for (const LaunchSet one : with(set)) {
    connections_.shut(one, cause);
  }
  drop_unused();
}

bool NcclCollectives::in_flight(LaunchSet set) const {
  const auto of_set = [set](const Group& group) { return group.set() == set; };
  return std::ranges::any_of(queue_, of_set) || std::ranges::any_of(running_, of_set);
}

void NcclCollectives::drop_unused() {
  connections_.drop_shut([this](LaunchSet set) { return !in_flight(set); });
}

void NcclCollectives::close(Done done) {
  SRT_IN_LOOP(parts_.loop);
  const Status cause(Code::kShutdown, "the collectives are closed");
  closing_ = std::move(done);
  if (!ended_.ok() || !queue_.empty() || !idle()) {
    abort(cause);
    end_closing({});
    return;
  }
  ended_ = cause;
  connections_.close(unless_gone(&NcclCollectives::end_closing));
}

void NcclCollectives::end_closing(const Status& /*closed*/) {
  closing_deadline_ = parts_.loop.now() + options_.end_timeout;
  poll();
}

// ---- operations ----

Status NcclCollectives::check(const CollectiveArgs& args) const {
  return check_work(args, {});
}

Status NcclCollectives::check_work(const CollectiveArgs& args, const DeviceWork& work) const {
  if (work.on_host && options_.host_size == 0) {
    return {Code::kUnsupported, "the ranks of this host do not form a group"};
  }
  SRT_CHECK(connections_.has(work.launch_set()));
  const Connections::Place& place = connections_.place(work.launch_set());
  SRT_TRY(check_args(args, place.rank, place.size));
  SRT_TRY(check_supported(args));
  const bool sums_in_place =
      args.kind == OpKind::kAllreduce && args.op == ReduceOp::kSum && args.in.data() == args.out.data();
  return work.on_host && !sums_in_place ? invalid_argument("the ranks of a host support sums in place only") : Status();
}

void NcclCollectives::start_work(CollectiveArgs args, DeviceWork work, Done done) {
  SRT_IN_LOOP(parts_.loop);
  Status refused = ended_;
  refused.update(check_work(args, work));
  if (refused.ok()) {
    refused = connections_.closed(work.launch_set());
  }
  if (refused.ok() && in_flight(args.tag)) {
    refused = invalid_argument("tag " + std::to_string(args.tag.value) + " is already in flight");
  }
  if (!refused.ok()) {
    reply(std::move(done), std::move(refused));
    return;
  }
  if (queue_.empty() || !queue_.back().open) {
    queue_.emplace_back();
  }
  Group& group = queue_.back();
  SRT_CHECK(group.operations.empty() || group.set() == work.launch_set());
  group.open = work.more;
  group.bytes += std::max(args.in.size(), args.out.size());
  group.operations.push_back({std::move(args), work, std::move(done)});
  launch_next();
}

bool NcclCollectives::has_credit(const Group& group) const {
  return events_->left() > kSpareEvents && (idle() || bytes_in_flight_ + group.bytes <= options_.credit_bytes);
}

// Only ever the first, and all of it: if one rank skipped an operation, another would wait for it on the device.
void NcclCollectives::launch_next() {
  if (launching_ || !ended_.ok() || queue_.empty() || queue_.front().open) {
    return;
  }
  const Group& group = queue_.front();
  if (group.connecting) {
    // NCCL allocates memory meanwhile, which may wait for all work of the device.
    if (idle()) {
      launching_ = true;
      connections_.connect(with(group.set()), unless_gone(&NcclCollectives::connected));
    }
    return;
  }
  if (!has_credit(group)) {
    return;
  }
  if (const Status status = wait_for_inputs(group); !status.ok()) {
    fail(status);
    return;
  }
  launching_ = true;
  Done then = unless_gone(&NcclCollectives::launched);
  Communicator* const communicator = connections_.of(group.set());
  const Connections::Place& place = connections_.place(group.set());
  std::vector<Communicator::Call> calls;
  for (const Operation& operation : group.operations) {
    if (communicator != nullptr) {
      std::ranges::move(calls_of(operation.args, place.rank, place.size, stream_.native), std::back_inserter(calls));
    }
  }
  if (calls.empty()) {
    reply(std::move(then), {});
  } else {
    communicator->launch(std::move(calls), std::move(then));
  }
}

Status NcclCollectives::wait_for_inputs(const Group& group) {
  for (const Operation& operation : group.operations) {
    if (operation.work.ready) {
      SRT_TRY(parts_.device.wait(stream_, operation.work.ready));
    }
  }
  return {};
}

void NcclCollectives::launched(const Status& done) {
  const Status status = done.ok() ? finish_on_device(queue_.front()) : done;
  // Even a bad argument ends everything: the other ranks have launched theirs, and would match it with the next one
  // here.
  if (!status.ok()) {
    fail(status);
    return;
  }
  launching_ = false;
  Group& group = running_.emplace_back(std::move(queue_.front()));
  queue_.pop_front();
  group.deadline = parts_.loop.now() + options_.timeout;
  bytes_in_flight_ += group.bytes;
  pause_ = options_.communicator.first_poll;
  poll_later();
  launch_next();
}

Status NcclCollectives::finish_on_device(Group& group) {
  const Rank me = connections_.place(group.set()).rank;
  for (const Operation& operation : group.operations) {
    SRT_TRY(divide(operation));
    if (const OwnBlock own = own_block(operation.args, me); !own.to.empty()) {
      SRT_TRY(parts_.device.copy(stream_, own.to.data(), own.from.data(), own.to.size()));
    }
  }
  SRT_ASSIGN(group.end, events_->take());
  return parts_.device.record(group.end.get(), stream_);
}

Status NcclCollectives::divide(const Operation& operation) {
  const CollectiveArgs& args = operation.args;
  const int ranks = connections_.place(operation.work.launch_set()).size;
  const bool reduces = args.kind == OpKind::kAllreduce || args.kind == OpKind::kReduceScatter;
  if (!reduces || args.op != ReduceOp::kAverage || averages_itself(args, ranks) || args.out.empty()) {
    return {};
  }
  const std::byte* const sum = args.out.data();
  kernels::cuda::Reduce divide{};
  divide.op = ReduceOp::kAverage;
  divide.dtype = args.dtype;
  divide.sources = {&sum, 1};
  divide.out = args.out.data();
  divide.n = static_cast<std::int64_t>(args.out.size() / dtype_size(args.dtype));
  divide.divisor = args.divisor > 0 ? static_cast<std::int64_t>(args.divisor) : ranks;
  const auto launch = parts_.device.kernels().reduce(divide, stream_.native);
  return launch.ok()
             ? Status()
             : unavailable(described(args) + ": the device refuses a kernel with error " + std::to_string(launch.code));
}

void NcclCollectives::poll_later() {
  if ((idle() && draining_.empty() && !closing_deadline_) || timer_ != TimerId()) {
    return;
  }
  timer_ = parts_.loop.after(pause_, [this] {
    timer_ = {};
    poll();
  });
  pause_ = std::min(2 * pause_, options_.communicator.last_poll);
}

void NcclCollectives::poll() {
  if (const Status status = poll_running(); !status.ok()) {
    fail(status);
  }
  poll_draining();
  drop_unused();
  // Callbacks of operations come before that of close().
  const bool over = teardown_.done() && draining_.empty();
  if (closing_deadline_ && (over || parts_.loop.now() >= *closing_deadline_)) {
    closing_deadline_.reset();
    reply(std::exchange(closing_, {}), {});
  }
  launch_next();
  poll_later();
}

Status NcclCollectives::poll_running() {
  while (!running_.empty()) {
    Group& group = running_.front();
    SRT_ASSIGN(const bool done, parts_.device.done(group.end.get()));
    if (!done) {
      break;
    }
    bytes_in_flight_ -= group.bytes;
    for (Operation& operation : group.operations) {
      reply(std::move(operation.done), {});
    }
    running_.pop_front();
    pause_ = options_.communicator.first_poll;
  }
  if (running_.empty()) {
    return {};
  }
  // Others may have lost a rank that has left in order.
  std::optional<LaunchSet> checked;
  for (const Group& group : running_) {
    if (std::exchange(checked, group.set()) != group.set()) {
      SRT_TRY(connections_.check(group.set()));
    }
  }
  Group& first = running_.front();
  const bool shut = connections_.shut(first.set());
  if (shut) {
    first.deadline = std::min(first.deadline, parts_.loop.now() + options_.grace);
  }
  if (parts_.loop.now() < first.deadline) {
    return {};
  }
  if (shut) {
    return connections_.closed(first.set())
        .with_context(described(first.operations.front().args) + " is still on the device");
  }
  const Communicator* const communicator = connections_.of(first.set());
  const std::string over = communicator == nullptr ? "" : " over communicator '" + communicator->name() + "'";
  return {Code::kTimeout,
          described(first.operations.front().args) + over + " of rank " + std::to_string(rank()) +
              " did not end in time (device.nccl_timeout). Likely cause: a rank has not started it, has "
              "stopped, or has started another operation"};
}

// Buffers return to the caller once the device has passed all work from before the end, or at a deadline.
void NcclCollectives::poll_draining() {
  std::erase_if(draining_, [this](Draining& draining) {
    std::erase_if(draining.events, [this](const device::PooledEvent& event) {
      const auto done = parts_.device.done(event.get());
      return !done || *done;
    });
    const bool used = !draining.events.empty() || (draining.launching && !teardown_.done());
    if (used && parts_.loop.now() < draining.deadline) {
      return false;
    }
    cut_off_ = cut_off_ || used;
    for (auto& [done, status] : draining.replies) {
      reply(std::move(done), std::move(status));
    }
    return true;
  });
}

bool NcclCollectives::drained() {
  return !cut_off_ && !launching_ && idle() && draining_.empty() && teardown_.done();
}

bool NcclCollectives::in_flight(const TagGroup& tags) const {
  const auto named = [&](const Operation& operation) { return tags.contains(operation.args.tag); };
  const auto has = [&](const Group& group) { return std::ranges::any_of(group.operations, named); };
  return std::ranges::any_of(queue_, has) || std::ranges::any_of(running_, has);
}

void NcclCollectives::cancel(TagGroup tags, Status cause) {
  SRT_IN_LOOP(parts_.loop);
  if (in_flight(tags)) {
    end_all(&tags, cause,
            {Code::kAborted, "an operation that was in flight beside this one was cancelled: " + cause.to_string()});
  }
}

void NcclCollectives::abort(Status cause) {
  SRT_IN_LOOP(parts_.loop);
  if (ended_.ok()) {
    fail(cause);
  }
}

void NcclCollectives::fail(const Status& cause) {
  end_all(nullptr, cause, cause);
}

void NcclCollectives::end_all(const TagGroup* tags, const Status& cause, const Status& rest) {
  ++generation_;
  ended_ = rest;
  connections_.abort(rest);
  Draining draining;
  draining.deadline = parts_.loop.now() + options_.end_timeout;
  if (std::exchange(launching_, false) && !queue_.front().connecting) {
    // A part of the group may be on the stream already, and NCCL may launch the rest until it has ended.
    draining.launching = true;
    auto event = events_->take();
    if (event && parts_.device.record(event->get(), stream_).ok()) {
      draining.events.push_back(std::move(*event));
    }
  }
  for (std::deque<Group>* const groups : {&running_, &queue_}) {
    for (Group& group : *groups) {
      if (group.connecting) {
        reply(std::move(group.connecting->done), rest);
      }
      for (Operation& operation : group.operations) {
        const bool named = tags != nullptr && tags->contains(operation.args.tag);
        draining.replies.emplace_back(std::move(operation.done), named ? cause : rest);
      }
      if (group.end) {
        draining.events.push_back(std::move(group.end));
      }
    }
    groups->clear();
  }
  bytes_in_flight_ = 0;
  draining_.push_back(std::move(draining));
  pause_ = options_.communicator.first_poll;
  poll_draining();
  poll_later();
}

}  // namespace sirtaki::net::nccl
