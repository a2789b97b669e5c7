// Many allreduces at once over shared memory, whose sums are checked; for tests of collectives.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <vector>

#include "tests/conformance/collectives_worlds.h"

namespace sirtaki::net::testing {

inline WorldOptions memory_of(std::size_t bytes) {
  WorldOptions options;
  options.shared_bytes = bytes;
  return options;
}

// Input that differs by rank and position and has exact sums. It lies in shared memory of the collectives if `lent` is
// set and space is left, else in private memory. Use it on the loop of the rank.
class Numbers {
 public:
  Numbers() = default;
  Numbers(Collectives& net, std::size_t count, bool lent) : own_(count) {
    for (std::size_t i = 0; i < count; ++i) {
      own_[i] = static_cast<float>(net.rank() + 1) * static_cast<float>(i % 1009);
    }
    if (lent) {
      lent_ = net.allocate_shared(count * sizeof(float));
      const auto bytes = std::as_bytes(std::span(own_)).first(lent_.memory.size());
      std::ranges::copy(bytes, lent_.memory.begin());
    }
  }
  bool lent() const { return lent_.keeps != nullptr; }
  CollectiveArgs args(OpTag tag) {
    CollectiveArgs args;
    args.tag = tag;
    args.out = lent() ? lent_.memory : std::as_writable_bytes(std::span(own_));
    args.in = args.out;
    return args;
  }
  bool are_sums(int ranks) const {
    std::vector<float> sums(own_.size());
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] = static_cast<float>(ranks * (ranks + 1) / 2) * static_cast<float>(i % 1009);
    }
    return lent() ? std::ranges::equal(lent_.memory, std::as_bytes(std::span(sums))) : own_ == sums;
  }

 private:
  std::vector<float> own_;
  SharedBuffer lent_;
};

// Allreduces that are all in flight at once.
class Allreduces {
 public:
  Allreduces(World& world, int operations, std::size_t elements, bool lent = false)
      : world_(world), elements_(elements), lent_(lent), memory_(static_cast<std::size_t>(operations * world.size())) {}

  // Starts all operations on all ranks, each in a turn of its own.
  void start(std::uint64_t first_tag) {
    const auto ranks = static_cast<std::size_t>(world_.size());
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      world_.on(static_cast<Rank>(i % ranks), [this, first_tag, i] { start_one(first_tag, i); });
    }
  }
  // Starts all operations of one rank in one turn, in an order that depends on the rank.
  void start_on(Rank rank, std::uint64_t first_tag) {
    world_.on(rank, [this, rank, first_tag] {
      const auto ranks = static_cast<std::size_t>(world_.size());
      std::vector<std::size_t> order(memory_.size() / ranks);
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::shuffle(order.begin(), order.end(), std::mt19937_64(static_cast<std::uint64_t>(rank)));
      for (const std::size_t operation : order) {
        start_one(first_tag, operation * ranks + static_cast<std::size_t>(rank));
      }
    });
  }
  bool ended() const { return ended_ == static_cast<int>(memory_.size()); }
  int failed() const { return failed_; }
  int wrong() const { return wrong_; }
  int lent() const { return found_lent_; }

 private:
  // `i` counts operations, and ranks within each.
  void start_one(std::uint64_t first_tag, std::size_t i) {
    const auto ranks = static_cast<std::size_t>(world_.size());
    const auto rank = static_cast<Rank>(i % ranks);
    memory_[i] = Numbers(world_.at(rank), elements_, lent_);
    found_lent_ += memory_[i].lent() ? 1 : 0;
    world_.at(rank).start(memory_[i].args(OpTag(first_tag + i / ranks)), [this, i](const Status& status) {
      if (status.ok()) {
        wrong_ += memory_[i].are_sums(world_.size()) ? 0 : 1;
      } else {
        ++failed_;
      }
      memory_[i] = Numbers();
      ++ended_;
      notify();
    });
  }

  World& world_;
  const std::size_t elements_;
  const bool lent_;
  std::vector<Numbers> memory_;
  std::atomic<int> found_lent_{0};
  std::atomic<int> ended_{0};
  std::atomic<int> failed_{0};
  std::atomic<int> wrong_{0};
};

inline std::size_t pages_used(World& world) {
  std::atomic<int> answers{0};
  std::atomic<std::size_t> used{0};
  for (Rank rank = 0; rank < world.size(); ++rank) {
    world.on(rank, [&, rank] {
      used += world.shared(rank)->pages_used();
      ++answers;
      notify();
    });
  }
  EXPECT_TRUE(world.wait([&] { return answers == world.size(); }));
  return used;
}

// Returns true once `pages` pages are used. Each call of pages_used() runs a turn of every loop.
inline bool becomes_used(World& world, std::size_t pages) {
  for (int looks = 0; looks < 100'000; ++looks) {
    if (pages_used(world) == pages) {
      return true;
    }
  }
  return false;
}

// Returns true once no page is used: a rank learns by a message of another one that its block has been read.
inline bool all_free(World& world) {
  return becomes_used(world, 0);
}

inline void cancel_after(World& world, Rank rank, OpTag tag, std::uint64_t turns, std::atomic<int>& cancelled) {
  world.on(rank, [&world, rank, tag, turns, &cancelled] {
    if (turns > 0) {
      cancel_after(world, rank, tag, turns - 1, cancelled);
      return;
    }
    world.at(rank).cancel(tag, {Code::kAborted, "test"});
    ++cancelled;
    notify();
  });
}

}  // namespace sirtaki::net::testing
