// Bundles: messages of several ranks on the way up the tree of relays, and messages to several ranks on the way down,
// as one message on a connection. Plain values with their bounded wire form; pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/control/messages.h"
#include "runtime/control/rank_set.h"

namespace sirtaki::control {

// A message that all of `ranks` sent.
struct SourcedMessage {
  RankSet ranks;
  MemberMessage message;
};
using Bundle = std::vector<SourcedMessage>;

// A message to all of `ranks`.
struct TargetedMessage {
  RankSet ranks;
  CoordinatorMessage message;
};
using Spread = std::vector<TargetedMessage>;

inline constexpr std::size_t kPartBytes = std::size_t{8} << 20;

// Returns the subject of a message. Two messages with one subject may be merged if merges() allows it, because the
// coordinator reacts alike to single and merged messages. Empty: the message is never merged.
std::string subject(const MemberMessage& message);
// Returns true if the coordinator cannot distinguish the messages: equal ones, or compatible announcements.
bool merges(const MemberMessage& a, const MemberMessage& b);

std::vector<std::byte> encode(const Bundle& bundle);
std::vector<std::byte> encode(const Spread& spread);
// Encode in several parts. No part is longer than `most` bytes, unless it has a single item.
std::vector<std::vector<std::byte>> encode_parts(const Bundle& bundle, std::size_t most = kPartBytes);
std::vector<std::vector<std::byte>> encode_parts(const Spread& spread, std::size_t most = kPartBytes);
// Decode. Ranks of `size` and above are errors.
Result<Bundle> decode_bundle(ConstBytes bytes, int size);
Result<Spread> decode_spread(ConstBytes bytes, int size);

}  // namespace sirtaki::control
