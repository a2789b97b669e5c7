// StreamBoard: state of one stream that the loop and the program exchange without posting a task: which tensors of the
// last finished step hold their result, and when the program needed them.
//
// Shared by GradientStream and StreamTable. One program thread at a time uses the program side, the loop uses the loop
// side, and any thread may read. Lock-free: a tensor is written before its entry is published.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/types.h"

namespace sirtaki::engine {

// Properties of the result of a tensor.
struct ResultKind {
  bool used = true;        // some rank had a gradient
  bool corrected = false;  // momentum correction made it a step of SGD with momentum, not a gradient
};

class StreamBoard {
 public:
  explicit StreamBoard(std::size_t tensors) : cells_(tensors) {}

  // ---- the program ----

  // Ends the step. Returns its mark, which is unique and never 0.
  std::uint64_t finish(TimePoint now);
  // Returns true if all of these tensors hold the result of the last finished step.
  bool reduced(std::span<const int> tensors) const;
  // Records that the program needs these tensors; the first call in a step counts.
  void need(std::span<const int> tensors, TimePoint now);
  // Records time that the program slept for a tensor; needed() subtracts it from later needs.
  void slept(Duration time) { slept_ns_.fetch_add(time.count(), std::memory_order_relaxed); }

  // ---- the loop ----

  // Publishes the result of tensor `index` for the step with this mark.
  void publish(int index, std::uint64_t mark, ResultKind kind);
  // Records the time from the first ready() of the step to the result of its last tensor.
  void reduced_in(Duration time) { lasted_ns_.store(time.count(), std::memory_order_relaxed); }
  // Withdraws all results, because the step was given up.
  void withdraw();

  // ---- any ----

  // Describe the result that was published last.
  bool used(int index) const { return kind(index).used; }
  ResultKind kind(int index) const { return cell(index).kind.load(std::memory_order_relaxed); }
  // Returns the time from finish() to the first need of the tensor, less the time slept; nullopt: not needed yet.
  std::optional<Duration> needed(int index) const;
  // Returns the clock time of that need, which includes the time slept.
  std::optional<TimePoint> needed_at(int index) const;
  // Time that the program slept since finish().
  Duration slept() const { return Duration(slept_ns_.load(std::memory_order_relaxed)); }
  Duration lasted() const { return Duration(lasted_ns_.load(std::memory_order_relaxed)); }
  std::size_t size() const { return cells_.size(); }

 private:
  struct Cell {
    std::atomic<std::uint64_t> reduced{0};    // mark of the step; release and acquire order the memory of the tensor
    std::atomic<std::int64_t> needed_ns{-1};  // relaxed, as all below: each value stands alone
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
