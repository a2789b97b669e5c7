#include "runtime/engine/stream/stream_trace.h"

#include <algorithm>
#include <utility>

namespace sirtaki::engine {
namespace {

bool known(TimePoint time) {
  return time != TimePoint();
}

}  // namespace

void StreamTrace::begin_step(std::shared_ptr<const scheduler::Plan> plan) {
  if (plan != plan_) {
    plan_ = std::move(plan);
    labels_.clear();
  }
  times_.assign(plan_->partitions().size(), {});
  last_launched_ = -1;
  last_launch_ = {};
}

const std::string& StreamTrace::label(int position) {
  labels_.resize(plan_->partitions().size());
  std::string& text = labels_[static_cast<std::size_t>(position)];
  if (text.empty()) {
    const std::vector<scheduler::Slice>& slices = plan_->partitions()[static_cast<std::size_t>(position)].slices;
    const scheduler::PlannedTensor& first = plan_->tensors()[static_cast<std::size_t>(slices.front().tensor)];
    text = stream_ + ": " + first.name;
    if (slices.front().numel != first.numel) {
      text += " [" + std::to_string(slices.front().offset) + "]";
    }
    if (slices.size() > 1) {
      text += " and " + std::to_string(slices.size() - 1) + " more";
    }
  }
  return text;
}

void StreamTrace::ready(int position) {
  if (trace_.on()) {
    at(position).ready = trace_.now();
  }
}

// Partitions start in the plan's order, so a partition waits for the one before it to start, then for credit.
void StreamTrace::launched(int position) {
  if (!trace_.on()) {
    return;
  }
  Times& times = at(position);
  const TimePoint now = trace_.now();
  if (known(times.ready)) {
    const TimePoint turn = std::clamp(last_launch_, times.ready, now);
    if (turn > times.ready && last_launched_ >= 0) {
      trace_.queued(label(position) + " behind " + label(last_launched_), times.ready, turn, position);
    }
    if (now > turn) {
      trace_.queued(label(position) + " behind what is in flight", turn, now, position);
    }
  }
  last_launched_ = position;
  last_launch_ = times.stage = now;
}

void StreamTrace::next_stage(int position, Stage stage, std::int64_t bytes) {
  if (!trace_.on()) {
    return;
  }
  Times& times = at(position);
  if (known(times.stage)) {
    trace_.partition(label(position), stage, times.stage, position, bytes);
  }
  times.stage = trace_.now();
}

void StreamTrace::packed(int position, std::int64_t bytes) {
  next_stage(position, Stage::kPack, bytes);
}

void StreamTrace::received(int position, std::int64_t bytes) {
  next_stage(position, Stage::kNetwork, bytes);
}

void StreamTrace::unpacked(int position, std::int64_t bytes) {
  next_stage(position, Stage::kUnpack, bytes);
  at(position).done = at(position).stage;
}

void StreamTrace::encoded(int position, std::int64_t bytes) {
  next_stage(position, Stage::kEncode, bytes);
}

void StreamTrace::decoded(int position, std::int64_t bytes) {
  next_stage(position, Stage::kDecode, bytes);
  at(position).done = at(position).stage;
}

// A span of need lasts from the need to the result if the program had to wait; otherwise it is a moment.
void StreamTrace::end_step(TimePoint waited_since, const StreamBoard& board) {
  if (!trace_.on()) {
    return;
  }
  trace_.waited(stream_, waited_since);
  for (const scheduler::Partition& partition : plan_->partitions()) {
    TimePoint needed;
    for (const scheduler::Slice& slice : partition.slices) {
      const std::optional<TimePoint> time = board.needed_at(slice.tensor);
      if (time && (!known(needed) || *time < needed)) {
        needed = *time;
      }
    }
    const TimePoint done = at(partition.position).done;
    if (known(needed) && known(done)) {
      trace_.needed(label(partition.position), needed, std::max(needed, done), partition.position);
    }
  }
}

}  // namespace sirtaki::engine
