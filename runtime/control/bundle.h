// Bundles: what several ranks say on the way up the tree of relays, and what they are told on the way down, as one
// message on a connection. Plain values with their bounded wire form; pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/control/messages.h"
#include "runtime/control/rank_set.h"

namespace sirtaki::control {

// All of `ranks` say this.
struct SourcedMessage {
  RankSet ranks;
  MemberMessage message;
};
using Bundle = std::vector<SourcedMessage>;

// All of `ranks` are told this.
struct TargetedMessage {
  RankSet ranks;
  CoordinatorMessage message;
};
using Spread = std::vector<TargetedMessage>;

inline constexpr std::size_t kPartBytes = std::size_t{8} << 20;

// What a message is about, as long as it means the same to the coordinator whether several ranks say it one by one or
// together: two messages about one subject may be merged when merges() allows it. Empty: each stays alone.
std::string subject(const MemberMessage& message);
// The coordinator cannot tell one from the other: equal, or announcements that are compatible.
bool merges(const MemberMessage& a, const MemberMessage& b);

std::vector<std::byte> encode(const Bundle& bundle);
std::vector<std::byte> encode(const Spread& spread);
// As several, so that none but one of a single item is longer than `most` bytes.
std::vector<std::vector<std::byte>> encode_parts(const Bundle& bundle, std::size_t most = kPartBytes);
std::vector<std::vector<std::byte>> encode_parts(const Spread& spread, std::size_t most = kPartBytes);
// Refuses ranks of `size` and above.
Result<Bundle> decode_bundle(ConstBytes bytes, int size);
Result<Spread> decode_spread(ConstBytes bytes, int size);

}  // namespace sirtaki::control
