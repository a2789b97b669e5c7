// LaunchMessages: what ranks and rank 0 say to each other about the order of launches, as it travels.
//
// A message has one size, since its receiver has to know it. docs/wire_format.md lists the bytes. Pure values; written
// and read by OrderedDevice. Not for: what words mean together (launch_order.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::net {

struct LaunchWord {
  // The first two are said to rank 0, the others by it.
  enum class Kind : std::uint8_t { kReady = 1, kWithdraw = 2, kPlaced = 3, kWithdrawn = 4, kGone = 5 };
  Kind kind = Kind::kReady;
  OpTag tag;                // of all but kGone
  std::int32_t number = 0;  // the priority of kReady and kPlaced, the rank of kGone

  friend bool operator==(const LaunchWord&, const LaunchWord&) = default;
};

inline constexpr std::size_t kLaunchWordsBytes = 256;  // of a message
inline constexpr std::size_t kMostLaunchWords = 19;    // in one
inline constexpr std::uint32_t kLaunchWordsCheck = 0x6f726472;

// Of 1 to kMostLaunchWords words.
std::vector<std::byte> encode_launch_words(std::span<const LaunchWord> words);
// kCorrupt where it is not what the encoder makes of some words.
Result<std::vector<LaunchWord>> decode_launch_words(ConstBytes bytes);

}  // namespace sirtaki::net
