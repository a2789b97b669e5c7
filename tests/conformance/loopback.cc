#include "tests/conformance/loopback.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "runtime/base/check.h"

namespace sirtaki::net::testing {
namespace {

std::size_t at(Rank rank) {
  return static_cast<std::size_t>(rank);
}

// Returns the number of elements before block `rank` of `n` elements in `size` blocks.
std::int64_t share_begin(std::int64_t n, Rank rank, int size) {
  return n / size * rank + std::min<std::int64_t>(n % size, rank);
}

std::size_t bytes_before(const CollectiveArgs& args, const std::vector<std::int64_t>& counts, Rank rank) {
  return static_cast<std::size_t>(std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0})) *
         dtype_size(args.dtype);
}
std::size_t block_bytes(const CollectiveArgs& args, const std::vector<std::int64_t>& counts, Rank rank) {
  return static_cast<std::size_t>(counts[at(rank)]) * dtype_size(args.dtype);
}

// Returns whether two ranks mean the same operation.
bool agree(const CollectiveArgs& one, Rank one_rank, const CollectiveArgs& other, Rank other_rank) {
  if (one.kind != other.kind || one.dtype != other.dtype || one.op != other.op || one.divisor != other.divisor) {
    return false;
  }
  switch (one.kind) {
    case OpKind::kAllreduce:
      return one.in.size() == other.in.size();
    case OpKind::kBroadcast:
      return one.root == other.root && one.out.size() == other.out.size();
    case OpKind::kAllgather:
    case OpKind::kReduceScatter:
      return one.recv_counts == other.recv_counts;
    case OpKind::kAlltoall:
      return one.send_counts[at(other_rank)] == other.recv_counts[at(one_rank)] &&
             one.recv_counts[at(other_rank)] == other.send_counts[at(one_rank)];
    case OpKind::kBarrier:
      return true;
  }
  raise_bug(__FILE__, __LINE__, "operation kind");
}

}  // namespace

Result<std::shared_ptr<LoopbackGroup>> LoopbackGroup::create(device::DeviceApi& device, int size,
                                                             const LoopbackOptions& options) {
  std::shared_ptr<LoopbackGroup> group(new LoopbackGroup(device, options));
  const std::size_t each = 2 * static_cast<std::size_t>(size) + 1;
  SRT_ASSIGN(group->events_, device::EventPool::create(device, each * options.most_in_flight));
  for (Rank rank = 0; rank < size; ++rank) {
    SRT_ASSIGN(const device::Stream stream, device.make_stream(device::Priority::kNormal));
    group->streams_.push_back(stream);
  }
  group->members_.resize(at(size));
  group->loops_.resize(at(size));
  return group;
}

LoopbackGroup::~LoopbackGroup() {
  for (const device::Stream stream : streams_) {
    device_.destroy(stream);
  }
}

std::unique_ptr<LoopbackCollectives> LoopbackGroup::member(Rank rank, Loop& loop) {
  std::unique_ptr<LoopbackCollectives> made(new LoopbackCollectives(shared_from_this(), rank, loop));
  const std::lock_guard lock(mutex_);
  members_[at(rank)] = made->self_;
  loops_[at(rank)] = &loop;
  return made;
}

void LoopbackGroup::enter(Rank rank, Entry entry) {
  const std::lock_guard lock(mutex_);
  const OpTag tag = entry.args.tag;
  auto& meeting = meetings_[tag];
  if (!meeting) {
    meeting = std::make_shared<Meeting>();
    meeting->entries.resize(streams_.size());
  }
  meeting->entries[at(rank)] = std::move(entry);
  if (++meeting->there < size()) {
    return;
  }
  Launched outcome;
  outcome.meeting = meeting;
  meetings_.erase(tag);
  outcome.status = launch(*outcome.meeting, outcome.over);
  for (Rank to = 0; to < size(); ++to) {
    loops_[at(to)]->post([group = shared_from_this(), weak = members_[at(to)], tag, outcome] {
      if (const auto self = weak.lock()) {
        (*self)->launched(tag, outcome);
      } else {
        group->give_back(*outcome.meeting);
      }
    });
  }
}

std::vector<OpTag> LoopbackGroup::leave(Rank rank, const TagGroup& tags) {
  std::vector<OpTag> left;
  const std::lock_guard lock(mutex_);
  std::erase_if(meetings_, [&](auto& item) {
    auto& [tag, meeting] = item;
    if (tags.contains(tag) && meeting->entries[at(rank)]) {
      meeting->entries[at(rank)].reset();
      --meeting->there;
      left.push_back(tag);
    }
    return meeting->there == 0;
  });
  return left;
}

// Returns events under the lock, not when the last reference to the meeting goes.
void LoopbackGroup::give_back(Meeting& meeting) {
  const std::lock_guard lock(mutex_);
  if (--meeting.there == 0) {
    meeting.events.clear();
  }
}

Status LoopbackGroup::all_wait(const std::vector<device::Event>& events) {
  for (const device::Stream stream : streams_) {
    for (const device::Event event : events) {
      SRT_TRY(device_.wait(stream, event));
    }
  }
  return {};
}

// Records one event on each stream, after the work queued so far.
Result<std::vector<device::Event>> LoopbackGroup::mark_all(Meeting& meeting) {
  std::vector<device::Event> marks;
  for (const device::Stream stream : streams_) {
    SRT_ASSIGN(device::PooledEvent event, events_->take());
    SRT_TRY(device_.record(event.get(), stream));
    marks.push_back(event.get());
    meeting.events.push_back(std::move(event));
  }
  return marks;
}

Status LoopbackGroup::launch(Meeting& meeting, device::Event& over) {
  std::vector<device::Event> ready;
  for (Rank rank = 0; rank < size(); ++rank) {
    const Entry& entry = *meeting.entries[at(rank)];
    for (Rank other = 0; other < rank; ++other) {
      if (!agree(meeting.entries[at(other)]->args, other, entry.args, rank)) {
        return {Code::kMismatch, std::string(op_kind_name(entry.args.kind)) + ": ranks " + std::to_string(other) +
                                     " and " + std::to_string(rank) + " do not mean the same operation"};
      }
    }
    if (entry.work.ready) {
      ready.push_back(entry.work.ready);
    }
  }
  SRT_TRY(all_wait(ready));
  for (Rank rank = 0; rank < size(); ++rank) {
    SRT_TRY(reduce(meeting, rank));
  }
  SRT_ASSIGN(const std::vector<device::Event> reduced, mark_all(meeting));
  SRT_TRY(all_wait(reduced));
  for (Rank rank = 0; rank < size(); ++rank) {
    SRT_TRY(move(meeting, rank));
  }
  // No stream continues before all have read its input.
  SRT_ASSIGN(const std::vector<device::Event> moved, mark_all(meeting));
  SRT_TRY(all_wait(moved));
  SRT_ASSIGN(device::PooledEvent last, events_->take());
  over = last.get();
  meeting.events.push_back(std::move(last));
  return device_.record(over, streams_[0]);
}

// Reduces block `rank` of all ranks into its own output. No other rank reads that block, so it may be one of the
// inputs.
Status LoopbackGroup::reduce(const Meeting& meeting, Rank rank) {
  const CollectiveArgs& args = meeting.entries[at(rank)]->args;
  std::size_t begin = 0;
  std::size_t bytes = 0;
  std::byte* out = args.out.data();
  if (args.kind == OpKind::kReduceScatter) {
    begin = bytes_before(args, args.recv_counts, rank);
    bytes = args.out.size();
  } else if (args.kind == OpKind::kAllreduce) {
    const auto item = static_cast<std::int64_t>(dtype_size(args.dtype));
    const std::int64_t n = static_cast<std::int64_t>(args.out.size()) / item;
    begin = static_cast<std::size_t>(share_begin(n, rank, size()) * item);
    bytes = static_cast<std::size_t>(share_begin(n, rank + 1, size()) * item) - begin;
    out += begin;
  }
  if (bytes == 0) {
    return {};
  }
  std::vector<const std::byte*> sources;
  for (const auto& entry : meeting.entries) {
    sources.push_back(entry->args.in.data() + begin);
  }
  kernels::cuda::Reduce sum{};
  sum.op = args.op;
  sum.dtype = args.dtype;
  sum.sources = sources;
  sum.out = out;
  sum.n = static_cast<std::int64_t>(bytes / dtype_size(args.dtype));
  sum.divisor = args.divisor > 0 ? static_cast<std::int64_t>(args.divisor) : size();
  const auto launch = device_.kernels().reduce(sum, streams_[at(rank)].native);
  return launch.ok() ? Status() : unavailable("the device refuses a kernel with error " + std::to_string(launch.code));
}

Status LoopbackGroup::copy(Rank rank, Bytes to, const std::byte* from) {
  return to.empty() || to.data() == from ? Status() : device_.copy(streams_[at(rank)], to.data(), from, to.size());
}

// Moves the messages for `rank` from the others.
Status LoopbackGroup::move(const Meeting& meeting, Rank rank) {
  const CollectiveArgs& mine = meeting.entries[at(rank)]->args;
  const auto item = static_cast<std::int64_t>(dtype_size(mine.dtype));
  const std::int64_t n = static_cast<std::int64_t>(mine.out.size()) / item;
  if (mine.kind == OpKind::kBroadcast) {
    return copy(rank, mine.out, meeting.entries[at(mine.root)]->args.out.data());
  }
  for (Rank from = 0; from < size(); ++from) {
    const CollectiveArgs& theirs = meeting.entries[at(from)]->args;
    if (mine.kind == OpKind::kAllreduce) {
      const auto begin = static_cast<std::size_t>(share_begin(n, from, size()) * item);
      const auto end = static_cast<std::size_t>(share_begin(n, from + 1, size()) * item);
      SRT_TRY(copy(rank, mine.out.subspan(begin, end - begin), theirs.out.data() + begin));
    } else if (mine.kind == OpKind::kAllgather || mine.kind == OpKind::kAlltoall) {
      const Bytes to =
          mine.out.subspan(bytes_before(mine, mine.recv_counts, from), block_bytes(mine, mine.recv_counts, from));
      const std::size_t begin = mine.kind == OpKind::kAlltoall ? bytes_before(theirs, theirs.send_counts, rank) : 0;
      SRT_TRY(copy(rank, to, theirs.in.data() + begin));
    }
  }
  return {};
}

LoopbackCollectives::LoopbackCollectives(std::shared_ptr<LoopbackGroup> group, Rank rank, Loop& loop)
    : group_(std::move(group)), rank_(rank), loop_(loop) {}

LoopbackCollectives::~LoopbackCollectives() {
  self_.reset();
  loop_.cancel(timer_);
  group_->leave(rank_, TagGroup(OpTag(), 0));
  for (auto& [tag, flight] : flights_) {
    if (flight.meeting) {
      group_->give_back(*flight.meeting);
    }
  }
}

void LoopbackCollectives::start_work(CollectiveArgs args, DeviceWork work, Done done) {
  SRT_IN_LOOP(loop_);
  const OpTag tag = args.tag;
  Status refused = aborted_;
  refused.update(check_args(args, rank_, size()));
  if (refused.ok() && flights_.contains(tag)) {
    refused = invalid_argument("tag " + std::to_string(tag.value) + " is already in flight");
  }
  if (!refused.ok()) {
    loop_.post([moved = std::move(done), status = std::move(refused)]() mutable { moved(status); });
    return;
  }
  flights_.emplace(tag, Flight{std::move(done), {}, {}, nullptr});
  group_->enter(rank_, {std::move(args), std::move(work)});
}

void LoopbackCollectives::launched(OpTag tag, LoopbackGroup::Launched launched) {
  const auto flight = flights_.find(tag);
  if (flight == flights_.end()) {
    group_->give_back(*launched.meeting);
    return;
  }
  flight->second.meeting = std::move(launched.meeting);
  flight->second.over = launched.over;
  flight->second.status.update(launched.status);
  if (!launched.status.ok()) {
    end(flight);
    return;
  }
  watch();
}

void LoopbackCollectives::end(std::unordered_map<OpTag, Flight>::iterator flight) {
  Status status = flight->second.status;
  Done done = std::move(flight->second.done);
  if (flight->second.meeting) {
    group_->give_back(*flight->second.meeting);
  }
  flights_.erase(flight);
  loop_.post([moved = std::move(done), status = std::move(status)]() mutable { moved(status); });
}

void LoopbackCollectives::watch() {
  const bool busy = std::any_of(flights_.begin(), flights_.end(), [](const auto& item) { return item.second.over; });
  if (busy && timer_ == TimerId()) {
    timer_ = loop_.after(group_->options_.poll, [this] {
      timer_ = {};
      look();
      watch();
    });
  }
}

void LoopbackCollectives::look() {
  for (auto flight = flights_.begin(); flight != flights_.end();) {
    const auto next = std::next(flight);
    if (flight->second.over) {
      const auto done = group_->device_.done(flight->second.over);
      if (!done || *done) {
        flight->second.status.update(done.status());
        end(flight);
      }
    }
    flight = next;
  }
}

void LoopbackCollectives::cancel(TagGroup tags, Status cause) {
  SRT_IN_LOOP(loop_);
  for (auto& [tag, flight] : flights_) {
    if (tags.contains(tag)) {
      flight.status.update(cause);
    }
  }
  for (const OpTag tag : group_->leave(rank_, tags)) {
    end(flights_.find(tag));
  }
}

void LoopbackCollectives::abort(Status cause) {
  SRT_IN_LOOP(loop_);
  aborted_.update(cause);
  cancel(TagGroup(OpTag(), 0), aborted_);
}

}  // namespace sirtaki::net::testing
