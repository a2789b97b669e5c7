#include "runtime/engine/common/stream_board.h"

#include <algorithm>

#include "runtime/engine/common/relaxed.h"

namespace sirtaki::engine {

std::uint64_t StreamBoard::finish(TimePoint now) {
  for (Cell& cell : cells_) {
    cell.needed_ns.store(-1, kRelaxed);
  }
  slept_ns_.store(0, kRelaxed);
  finished_ns_.store(ns_of(now), kRelaxed);
  return mark_.fetch_add(1, kRelaxed) + 1;
}

bool StreamBoard::reduced(std::span<const int> tensors) const {
  const std::uint64_t mark = mark_.load(kRelaxed);
  return mark != 0 && std::all_of(tensors.begin(), tensors.end(), [&](int index) {
           return cell(index).reduced.load(std::memory_order_acquire) == mark;
         });
}

void StreamBoard::need(std::span<const int> tensors, TimePoint now) {
  const std::int64_t since = ns_of(now) - finished_ns_.load(kRelaxed) - slept_ns_.load(kRelaxed);
  for (const int index : tensors) {
    auto& needed = cells_[static_cast<std::size_t>(index)].needed_ns;
    if (needed.load(kRelaxed) < 0) {
      cells_[static_cast<std::size_t>(index)].needed_at_ns.store(ns_of(now), kRelaxed);
      needed.store(std::max<std::int64_t>(since, 0), kRelaxed);
    }
  }
}

void StreamBoard::publish(int index, std::uint64_t mark, ResultKind kind) {
  Cell& target = cells_[static_cast<std::size_t>(index)];
  target.kind.store(kind, kRelaxed);
  target.reduced.store(mark, std::memory_order_release);
}

void StreamBoard::withdraw() {
  for (Cell& cell : cells_) {
    cell.reduced.store(0, kRelaxed);
  }
}

std::optional<TimePoint> StreamBoard::needed_at(int index) const {
  return needed(index) ? std::optional(TimePoint(Duration(cell(index).needed_at_ns.load(kRelaxed)))) : std::nullopt;
}

std::optional<Duration> StreamBoard::needed(int index) const {
  const std::int64_t value = cell(index).needed_ns.load(kRelaxed);
  return value < 0 ? std::nullopt : std::optional(Duration(value));
}

}  // namespace sirtaki::engine
