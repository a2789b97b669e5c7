// How an operation's OpTag is built: the same on all ranks, different for everything in flight in an epoch.
//
//   operation by name   0 | id 24 | stage 1 | piece 2 | use 20 | fingerprint 16
//   stream partition    1 | stream 16 | attempt 8 | position 20 | phase 2 | step 17
// The coordinator gives out id, stream and attempt; use and step are counted by the rules of names.h and stream.h. They
// wrap: nothing in flight is a hundred thousand uses old. The fingerprint keeps ranks that disagree on an operation
// apart. The phases of a partition are the exchanges of its recipe; a dense one has one.
#pragma once

#include <cstdint>

#include "runtime/base/types.h"

namespace sirtaki::engine {

enum class OpStage : std::uint8_t { kSizes = 0, kPayload = 1 };

// `piece`: of the payload, modulo 4 (named_parts.h).
constexpr OpTag op_tag(std::uint32_t id, OpStage stage, std::uint32_t piece, std::uint64_t use,
                       std::uint16_t fingerprint) {
  return OpTag((static_cast<std::uint64_t>(id & 0xffffffU) << 39) | (static_cast<std::uint64_t>(stage) << 38) |
               (static_cast<std::uint64_t>(piece & 3U) << 36) | ((use & 0xfffffU) << 16) | fingerprint);
}

inline constexpr std::uint32_t kStreamPhases = 4;

constexpr OpTag stream_tag(StreamId stream, std::uint32_t attempt, std::uint32_t position, std::uint64_t step,
                           std::uint32_t phase = 0) {
  return OpTag((1ULL << 63) | (static_cast<std::uint64_t>(stream.value) << 47) |
               (static_cast<std::uint64_t>(attempt & 0xffU) << 39) |
               (static_cast<std::uint64_t>(position & 0xfffffU) << 19) |
               (static_cast<std::uint64_t>(phase & 3U) << 17) | (step & 0x1ffffU));
}

// Position of a stream's exchange of who had which gradient; beyond every partition.
inline constexpr std::uint32_t kFlagsPosition = 0xfffffU;
// Position of a stream's exchange of profiles and digests of plans.
inline constexpr std::uint32_t kExchangePosition = 0xffffeU;

}  // namespace sirtaki::engine
