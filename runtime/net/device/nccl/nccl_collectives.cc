#include "runtime/net/device/nccl/nccl_collectives.h"

#include <algorithm>
#include <span>
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

}  // namespace

NcclCollectives::NcclCollectives(const Parts& parts, const NcclOptions& options)
    : parts_(parts), options_(options), pause_(options.communicator.first_poll) {}

Result<std::unique_ptr<NcclCollectives>> NcclCollectives::create(const Parts& parts, const NcclOptions& options) {
  std::unique_ptr<NcclCollectives> made(new NcclCollectives(parts, options));
  SRT_TRY(made->prepare());
  return made;
}

// Creates everything that may synchronize with the device, while no collective is on it.
Status NcclCollectives::prepare() {
  SRT_ASSIGN(events_, device::EventPool::create(parts_.device, options_.most_in_flight + kSpareEvents));
  SRT_ASSIGN(scratch_memory_, device::Arena::create(parts_.device, device::Place::kDevice, 1));
  SRT_ASSIGN(scratch_, scratch_memory_->take(1));
  lanes_[kUrgent].communicator = make_communicator("urgent", parts_.ids, rank(), size());
  lanes_[kBulk].communicator = make_communicator("bulk", parts_.ids, rank(), size());
  if (options_.host_size > 1) {
    SRT_CHECK(parts_.host_ids != nullptr);
    lanes_[kHost].communicator = make_communicator("host", *parts_.host_ids, options_.host_rank, options_.host_size);
  }
  const std::size_t lanes = options_.host_size > 0 ? kLanes : kHost;
  for (Lane& lane : std::span(lanes_).first(lanes)) {
    // High priority for bulk, too: behind the kernels of a step, it would not overlap with them.
    SRT_ASSIGN(lane.stream, parts_.device.make_stream(device::Priority::kHigh));
  }
  return {};
}

std::unique_ptr<Communicator> NcclCollectives::make_communicator(const char* name, IdExchange& ids, Rank rank,
                                                                 int size) {
  CommunicatorOptions options = options_.communicator;
  options.name = name;
  options.rank = rank;
  options.size = size;
  return std::make_unique<Communicator>(parts_.loop, parts_.api, ids, parts_.log, options);
}

NcclCollectives::~NcclCollectives() {
  self_.reset();
  parts_.loop.cancel(timer_);
  for (Lane& lane : lanes_) {
    lane.communicator.reset();
    if (lane.stream.native != nullptr) {
      parts_.device.destroy(lane.stream);
    }
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

void NcclCollectives::connect(std::uint64_t attempt, Done done) {
  SRT_IN_LOOP(parts_.loop);
  if (ended_.ok()) {
    fail({Code::kAborted, "the communicators of NCCL are made anew"});
  }
  ended_ = {};
  has_cause_ = false;
  attempt_ = attempt;
  connecting_ = std::move(done);
  next_lane_ = 0;
  connect_next({});
}

// Connects one after the other, so that all ranks make them in the same order.
void NcclCollectives::connect_next(const Status& before) {
  if (!before.ok()) {
    fail(before);
    return;
  }
  while (next_lane_ < lanes_.size()) {
    if (Communicator* const next = lanes_[next_lane_++].communicator.get()) {
      next->connect(attempt_, unless_gone(&NcclCollectives::connect_next));
      return;
    }
  }
  reply(std::exchange(connecting_, {}), {});
  launch_next();
}

void NcclCollectives::close(Done done) {
  SRT_IN_LOOP(parts_.loop);
  const Status cause(Code::kShutdown, "the collectives are closed");
  if (!ended_.ok() || connecting_ || !queue_.empty() || !idle()) {
    abort(cause);
    reply(std::move(done), {});
    return;
  }
  ended_ = cause;
  has_cause_ = true;
  closing_ = std::move(done);
  next_lane_ = 0;
  close_next({});
}

void NcclCollectives::close_next(const Status& /*before*/) {
  while (next_lane_ < lanes_.size()) {
    if (Communicator* const next = lanes_[next_lane_++].communicator.get()) {
      next->close(unless_gone(&NcclCollectives::close_next));
      return;
    }
  }
  reply(std::exchange(closing_, {}), {});
}

bool NcclCollectives::idle() const {
  return std::ranges::all_of(lanes_, [](const Lane& lane) { return lane.running.empty(); });
}

Status NcclCollectives::check(const CollectiveArgs& args) const {
  SRT_TRY(check_args(args, rank(), size()));
  return check_supported(args);
}

Status NcclCollectives::check_work(const CollectiveArgs& args, const DeviceWork& work) const {
  SRT_TRY(check(args));
  if (!work.on_host) {
    return {};
  }
  if (args.kind != OpKind::kAllreduce || args.op != ReduceOp::kSum || args.in.data() != args.out.data()) {
    return invalid_argument("the ranks of a host support sums in place only");
  }
  return options_.host_size > 0 ? Status() : Status(Code::kUnsupported, "the ranks of this host do not form a group");
}

void NcclCollectives::start_work(CollectiveArgs args, DeviceWork work, Done done) {
  SRT_IN_LOOP(parts_.loop);
  Status refused = ended_;
  refused.update(check_work(args, work));
  if (refused.ok() && in_flight(args.tag)) {
    refused = invalid_argument("tag " + std::to_string(args.tag.value) + " is already in flight");
  }
  if (!refused.ok()) {
    reply(std::move(done), std::move(refused));
    return;
  }
  Operation operation;
  operation.bytes = std::max(args.in.size(), args.out.size());
  operation.args = std::move(args);
  operation.work = std::move(work);
  operation.done = std::move(done);
  queue_.push_back(std::move(operation));
  launch_next();
}

NcclCollectives::Lane& NcclCollectives::lane_of(const Operation& operation) {
  const LaneName among_all = operation.args.priority <= options_.urgent_priority ? kUrgent : kBulk;
  return lanes_[operation.work.on_host ? kHost : among_all];
}

bool NcclCollectives::has_credit(const Operation& operation) const {
  return events_->left() > kSpareEvents && (idle() || bytes_in_flight_ + operation.bytes <= options_.credit_bytes);
}

// Only ever the first: if one rank skipped an operation, another would wait for it on the device.
void NcclCollectives::launch_next() {
  if (launching_ || !ended_.ok() || connecting_ || queue_.empty() || !has_credit(queue_.front())) {
    return;
  }
  Operation& operation = queue_.front();
  Lane& lane = lane_of(operation);
  if (const Status status = wait_for_inputs(lane, operation); !status.ok()) {
    fail(status);
    return;
  }
  launching_ = true;
  Done then = unless_gone(&NcclCollectives::launched);
  std::vector<Communicator::Call> calls;
  if (lane.communicator) {
    calls = calls_of(operation.args, rank(), lane.stream.native, scratch_.bytes().data());
  }
  if (calls.empty()) {
    reply(std::move(then), {});
  } else {
    lane.communicator->launch(std::move(calls), std::move(then));
  }
}

// Makes the lane wait, on the device, for the input and for earlier launches on another communicator.
Status NcclCollectives::wait_for_inputs(Lane& lane, const Operation& operation) {
  const bool other_lane = last_lane_ != nullptr && last_lane_ != &lane && !last_lane_->running.empty();
  if (other_lane && !options_.ordered_by_nccl) {
    SRT_TRY(parts_.device.wait(lane.stream, last_lane_->running.back().end.get()));
  }
  if (operation.work.ready) {
    SRT_TRY(parts_.device.wait(lane.stream, operation.work.ready));
  }
  return {};
}

void NcclCollectives::launched(const Status& done) {
  Lane& lane = lane_of(queue_.front());
  const Status status = done.ok() ? finish_on_device(lane, queue_.front()) : done;
  // Even a bad argument ends everything: the other ranks have launched theirs, and would match it with the next one
  // here.
  if (!status.ok()) {
    fail(status);
    return;
  }
  launching_ = false;
  last_lane_ = &lane;
  Operation operation = std::move(queue_.front());
  queue_.pop_front();
  operation.deadline = parts_.loop.now() + options_.timeout;
  bytes_in_flight_ += operation.bytes;
  Task queued = std::exchange(operation.work.queued, {});
  lane.running.push_back(std::move(operation));
  pause_ = options_.communicator.first_poll;
  poll_later();
  launch_next();
  if (queued) {
    queued();
  }
}

Status NcclCollectives::finish_on_device(Lane& lane, Operation& operation) {
  const CollectiveArgs& args = operation.args;
  const bool reduces = args.kind == OpKind::kAllreduce || args.kind == OpKind::kReduceScatter;
  if (reduces && args.op == ReduceOp::kAverage && !averages_itself(args) && !args.out.empty()) {
    const std::byte* const sum = args.out.data();
    kernels::cuda::Reduce divide{};
    divide.op = ReduceOp::kAverage;
    divide.dtype = args.dtype;
    divide.sources = {&sum, 1};
    divide.out = args.out.data();
    divide.n = static_cast<std::int64_t>(args.out.size() / dtype_size(args.dtype));
    divide.divisor = args.divisor > 0 ? static_cast<std::int64_t>(args.divisor) : size();
    if (const auto launch = parts_.device.kernels().reduce(divide, lane.stream.native); !launch.ok()) {
      return unavailable(described(args) + ": the device refuses a kernel with error " + std::to_string(launch.code));
    }
  }
  SRT_ASSIGN(operation.end, events_->take());
  SRT_TRY(parts_.device.record(operation.end.get(), lane.stream));
  return operation.work.finished ? parts_.device.record(operation.work.finished, lane.stream) : Status();
}

void NcclCollectives::poll_later() {
  if ((idle() && draining_.empty()) || timer_ != TimerId()) {
    return;
  }
  timer_ = parts_.loop.after(pause_, [this] {
    timer_ = {};
    poll();
  });
  pause_ = std::min(2 * pause_, options_.communicator.last_poll);
}

void NcclCollectives::poll() {
  for (Lane& lane : lanes_) {
    if (const Status status = poll_lane(lane); !status.ok()) {
      fail(status);
      break;
    }
  }
  poll_draining();
  launch_next();
  poll_later();
}

Status NcclCollectives::poll_lane(Lane& lane) {
  while (!lane.running.empty()) {
    SRT_ASSIGN(const bool done, parts_.device.done(lane.running.front().end.get()));
    if (!done) {
      break;
    }
    bytes_in_flight_ -= lane.running.front().bytes;
    reply(std::move(lane.running.front().done), {});
    lane.running.pop_front();
    pause_ = options_.communicator.first_poll;
  }
  if (lane.running.empty()) {
    return {};
  }
  if (lane.communicator) {
    SRT_TRY(lane.communicator->check());
  }
  const Operation& first = lane.running.front();
  if (parts_.loop.now() < first.deadline) {
    return {};
  }
  const std::string over = lane.communicator ? " over communicator '" + lane.communicator->name() + "'" : "";
  return {Code::kTimeout, described(first.args) + over + " of rank " + std::to_string(rank()) +
                              " did not end in time. Likely cause: a rank has not started it, has stopped, or has "
                              "started another operation"};
}

// Buffers return to the caller once the device has passed all work from before the end, or at a deadline.
void NcclCollectives::poll_draining() {
  std::erase_if(draining_, [this](Draining& draining) {
    std::erase_if(draining.events, [this](const device::PooledEvent& event) {
      const auto done = parts_.device.done(event.get());
      return !done || *done;
    });
    if (!draining.events.empty() && parts_.loop.now() < draining.deadline) {
      return false;
    }
    for (auto& [done, status] : draining.replies) {
      reply(std::move(done), std::move(status));
    }
    return true;
  });
}

bool NcclCollectives::in_flight(const TagGroup& tags) const {
  const auto has = [&](const std::deque<Operation>& operations) {
    return std::any_of(operations.begin(), operations.end(),
                       [&](const Operation& operation) { return tags.contains(operation.args.tag); });
  };
  return has(queue_) || std::ranges::any_of(lanes_, [&](const Lane& lane) { return has(lane.running); });
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
  if (!has_cause_) {
    fail(cause);
  }
}

void NcclCollectives::fail(const Status& cause) {
  end_all(nullptr, cause, cause);
}

void NcclCollectives::end_all(const TagGroup* tags, const Status& cause, const Status& rest) {
  ++generation_;
  ended_ = rest;
  has_cause_ = true;
  for (Lane& lane : lanes_) {
    if (lane.communicator && lane.communicator->state() != Communicator::State::kClosed) {
      lane.communicator->abort(rest);
    }
  }
  Draining draining;
  draining.deadline = parts_.loop.now() + options_.communicator.call_timeout;
  if (std::exchange(launching_, false)) {
    // A part of the group may be on the stream already.
    auto event = events_->take();
    if (event && parts_.device.record(event->get(), lane_of(queue_.front()).stream).ok()) {
      draining.events.push_back(std::move(*event));
    }
  }
  const std::array all{&lanes_[kUrgent].running, &lanes_[kBulk].running, &lanes_[kHost].running, &queue_};
  for (std::deque<Operation>* const operations : all) {
    for (Operation& operation : *operations) {
      const bool named = tags != nullptr && tags->contains(operation.args.tag);
      draining.replies.emplace_back(std::move(operation.done), named ? cause : rest);
      if (operation.end) {
        draining.events.push_back(std::move(operation.end));
      }
    }
    operations->clear();
  }
  bytes_in_flight_ = 0;
  last_lane_ = nullptr;
  draining_.push_back(std::move(draining));
  if (connecting_) {
    reply(std::exchange(connecting_, {}), rest);
  }
  pause_ = options_.communicator.first_poll;
  poll_draining();
  poll_later();
}

}  // namespace sirtaki::net::nccl
