// StreamBoard: what the loop and the program's threads tell each other about one stream without a task between them:
// which tensors of the step finished last hold their result, and when the program needed them.
//
// Shared by Stream and StreamTable. The program's half is used by one thread at a time, the loop's by the loop; reading
// is free for all. No locks: a tensor's memory is written before its entry is published.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/types.h"

namespace sirtaki::engine {

// What the program is told of a tensor's result.
struct ResultKind {
  bool used = true;        // some rank had a gradient
  bool corrected = false;  // it is a step of SGD with momentum (momentum correction), not a gradient
};

class StreamBoard {
 public:
  explicit StreamBoard(std::size_t tensors) : cells_(tensors) {}

  // ---- the program ----

  // The step ends. Returns its mark, never 0 and never given twice.
  std::uint64_t finish(TimePoint now);
  // All of them hold the result of the step finished last.
  bool reduced(std::span<const int> tensors) const;
  // The program wants these tensors; only the first time in a step counts.
  void need(std::span<const int> tensors, TimePoint now);
  // The program slept for a tensor: its later needs would have come so much earlier.
  void slept(Duration time) { slept_ns_.fetch_add(time.count(), std::memory_order_relaxed); }

  // ---- the loop ----

  // Tensor `index` of the step with this mark holds its result.
  void publish(int index, std::uint64_t mark, ResultKind kind);
  // All tensors of the step are reduced, so long after its first ready().
  void reduced_in(Duration time) { lasted_ns_.store(time.count(), std::memory_order_relaxed); }
  // The step is void: nothing of it may be used.
  void withdraw();

  // ---- any ----

  // Of the step that was published last.
  bool used(int index) const { return kind(index).used; }
  ResultKind kind(int index) const { return cell(index).kind.load(std::memory_order_relaxed); }
  // From finish() to the first need of the tensor, without what the program slept between; nullopt: not needed yet.
  std::optional<Duration> needed(int index) const;
  // The same as a time of the clock, with what the program slept.
  std::optional<TimePoint> needed_at(int index) const;
  // What the program slept since finish().
  Duration slept() const { return Duration(slept_ns_.load(std::memory_order_relaxed)); }
  Duration lasted() const { return Duration(lasted_ns_.load(std::memory_order_relaxed)); }
  std::size_t size() const { return cells_.size(); }

 private:
  struct Cell {
    std::atomic<std::uint64_t> reduced{0};    // mark of the step; release, acquire: the tensor's memory lies before it
    std::atomic<std::int64_t> needed_ns{-1};  // relaxed, as the rest: numbers that stand for themselves
    std::atomic<std::int64_t> needed_at_ns{0};
    std::atomic<ResultKind> kind{ResultKind()};
  };
  const Cell& cell(int index) const { return cells_[static_cast<std::size_t>(index)]; }

  std::vector<Cell> cells_;
  std::atomic<std::uint64_t> mark_{0};
  std::atomic<std::int64_t> finished_ns_{0};
  std::atomic<std::int64_t> slept_ns_{0};
  std::atomic<std::int64_t> lasted_ns_{0};
};

}  // namespace sirtaki::engine
