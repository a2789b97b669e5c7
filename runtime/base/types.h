// Strong ids and units shared by all layers. Plain values.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace sirtaki {

// An integer that does not mix with other kinds of integers.
template <class Tag, class Int>
struct Id {
  Int value{};

  constexpr Id() = default;
  constexpr explicit Id(Int v) : value(v) {}
  constexpr auto operator<=>(const Id&) const = default;  // NOLINT(modernize-use-nullptr): a false alarm
};

using StreamId = Id<struct StreamTag, std::uint16_t>;    // one optimizer, process set, or the calls of the program
using RequestId = Id<struct RequestTag, std::uint64_t>;  // one submitted operation on this rank
using Epoch = Id<struct EpochTag, std::uint32_t>;        // one membership; grows with every (re-)initialisation

// A rank, or -1 for no rank. An int, since it is used as an index everywhere.
using Rank = int;

// Identifies one collective on all ranks of an epoch: the same operation has the same tag everywhere. Tags are built
// from stream and position (runtime/engine/common/tags.h), never from a counter that ranks advance independently.
using OpTag = Id<struct OpTagTag, std::uint64_t>;

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

// Monotonic time. Only a Loop reads a clock, since time is virtual in the simulator.
using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

}  // namespace sirtaki

template <class Tag, class Int>
struct std::hash<sirtaki::Id<Tag, Int>> {
  std::size_t operator()(const sirtaki::Id<Tag, Int>& id) const noexcept { return std::hash<Int>{}(id.value); }
};
