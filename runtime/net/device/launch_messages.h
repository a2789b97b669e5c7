// LaunchMessages: the wire format in which ranks and rank 0 agree on the order of launches.
//
// All messages have one size, because a receiver must know it in advance. docs/wire_format/data.md lists the bytes.
// Pure values; OrderedDevice writes and reads them. Not for the meaning of words (launch_order.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"
#include "runtime/net/device/launch_set.h"

namespace sirtaki::net {

struct LaunchWord {
  // The first two go to rank 0, the others come from it.
  enum class Kind : std::uint8_t { kReady = 1, kWithdraw = 2, kPlaced = 3, kWithdrawn = 4, kGone = 5 };
  Kind kind = Kind::kReady;
  OpTag tag;                // unused in kGone
  std::int32_t number = 0;  // priority in kReady; in kPlaced 1 if the next one belongs to its group; rank in kGone
  // In kReady only:
  LaunchSet set = kJobSet;
  std::uint64_t bytes = 0;  // size of the operation

  friend bool operator==(const LaunchWord&, const LaunchWord&) = default;
};

inline constexpr std::size_t kLaunchWordsBytes = 512;  // size of a message
inline constexpr std::size_t kMostLaunchWords = 20;    // words in a message
inline constexpr std::uint32_t kLaunchWordsCheck = 0x6f726472;

// Encodes 1 to kMostLaunchWords words.
std::vector<std::byte> encode_launch_words(std::span<const LaunchWord> words);
// Decodes a message; kCorrupt if the encoder cannot have written it.
Result<std::vector<LaunchWord>> decode_launch_words(ConstBytes bytes);

}  // namespace sirtaki::net
