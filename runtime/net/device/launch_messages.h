// LaunchMessages: the wire format in which ranks and rank 0 agree on the order of launches.
//
// All messages have one size, because a receiver must know it in advance. docs/wire_format/gpu.md lists the bytes.
// Pure values; LaunchLine writes and reads them. Not for the meaning of words (launch_order.h).
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
  enum class Kind : std::uint8_t {
    // About operations. The first two go to rank 0, the others come from it.
    kReady = 1,
    kWithdraw = 2,
    kPlaced = 3,
    kWithdrawn = 4,
    kGone = 5,
    // About process sets, to rank 0. A rank calls a set by a number of its own until it knows that of rank 0.
    kRanks = 6,
    kAble = 7,
    kConnected = 8,
    // About process sets, from rank 0.
    kConnect = 9,
    kOpen = 10,
    kRefused = 11,
    // About the sender, to rank 0: it launches nothing any more.
    kStopped = 12,
  };
  Kind kind = Kind::kReady;
  // The tag of an operation; in kRanks one bit for each of kRanksPerWord ranks; from kConnect on the receiver's own
  // number of the set; unused in kGone, kAble, kConnected and kStopped.
  OpTag tag;
  // kReady: priority. kPlaced: 1 if the next one belongs to its group. kGone: rank; that of the receiver if rank 0
  // orders nothing any more. kRefused: rank. kRanks: first rank / kRanksPerWord. kAble: version of NCCL, 0 if it cannot
  // be used. kConnected: 1 if it is. Unused in the others.
  std::int32_t number = 0;
  LaunchSet set = kJobSet;  // kReady, and all about process sets: from kConnected on the number of rank 0
  // kReady: size of the operation. kRefused: version of NCCL on the rank. Unused in the others.
  std::uint64_t bytes = 0;

  friend bool operator==(const LaunchWord&, const LaunchWord&) = default;
};

inline constexpr std::size_t kLaunchWordsBytes = 512;  // size of a message
inline constexpr std::size_t kMostLaunchWords = 20;    // words in a message
inline constexpr int kRanksPerWord = 64;               // ranks that a word of kind kRanks has bits for
inline constexpr std::uint32_t kLaunchWordsCheck = 0x6f726472;

// Encodes 1 to kMostLaunchWords words.
std::vector<std::byte> encode_launch_words(std::span<const LaunchWord> words);
// Decodes a message; kCorrupt if the encoder cannot have written it.
Result<std::vector<LaunchWord>> decode_launch_words(ConstBytes bytes);

}  // namespace sirtaki::net
