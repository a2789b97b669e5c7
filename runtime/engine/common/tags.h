// How an operation's OpTag is built: the same on all ranks, different for everything in flight in an epoch.
//
//   operation by name   0 | id 24 | stage 1 | piece 2 | use 20 | fingerprint 16
//   stream partition    1 | stream 16 | attempt 15 | position 18 | phase 4 | step 10
// The coordinator gives out id, stream and attempt; use and step are counted by the rules of names.h and stream.h. They
// wrap: nothing in flight is a hundred thousand uses or a thousand steps old. Attempts wrap, too, and a step may be
// given up again and again: each time the link remembers at least one group of tags more (stream_step_tags), and it
// forgets the oldest long before its attempt comes again. The fingerprint keeps ranks that disagree on an operation
// apart. The phases of a partition are the exchanges of its reduction; a dense one has one.
#pragma once

#include <cstdint>

#include "runtime/base/types.h"
#include "runtime/net/link/tag_group.h"
#include "runtime/net/link/tombstones.h"

namespace sirtaki::engine {

enum class OpStage : std::uint8_t { kSizes = 0, kPayload = 1 };

// `piece`: of the payload, modulo 4 (named_parts.h).
constexpr OpTag op_tag(std::uint32_t id, OpStage stage, std::uint32_t piece, std::uint64_t use,
                       std::uint16_t fingerprint) {
  return OpTag((static_cast<std::uint64_t>(id & 0xffffffU) << 39) | (static_cast<std::uint64_t>(stage) << 38) |
               (static_cast<std::uint64_t>(piece & 3U) << 36) | ((use & 0xfffffU) << 16) | fingerprint);
}

// All of one operation.
constexpr net::TagGroup op_tags(std::uint32_t id, std::uint64_t use, std::uint16_t fingerprint) {
  return {op_tag(id, OpStage::kSizes, 0, use, fingerprint), ~(7ULL << 36)};
}

// Of what ranks settle about their GPUs, beside all operations: an id that none has.
constexpr OpTag device_tag(std::uint16_t number) {
  return op_tag(0xffffffU, OpStage::kSizes, 0, 0, number);
}

inline constexpr std::uint32_t kStreamPhases = 16;

inline constexpr std::uint32_t kStreamAttempts = 1U << 15;
static_assert(kStreamAttempts > 2 * net::Tombstones::kCapacity);

constexpr OpTag stream_tag(StreamId stream, std::uint32_t attempt, std::uint32_t position, std::uint64_t step,
                           std::uint32_t phase = 0) {
  return OpTag((1ULL << 63) | (static_cast<std::uint64_t>(stream.value) << 47) |
               (static_cast<std::uint64_t>(attempt % kStreamAttempts) << 32) |
               (static_cast<std::uint64_t>(position & 0x3ffffU) << 14) |
               (static_cast<std::uint64_t>(phase & 0xfU) << 10) | (step & 0x3ffU));
}

// All of one step: every position and phase.
constexpr net::TagGroup stream_step_tags(StreamId stream, std::uint32_t attempt, std::uint64_t step) {
  return {stream_tag(stream, attempt, 0, step), ~(0x3fffffULL << 10)};
}
// All of a stream.
constexpr net::TagGroup stream_tags(StreamId stream) {
  return {stream_tag(stream, 0, 0, 0), ~0ULL << 47};
}

// Position of a stream's exchange of who had which gradient; beyond every partition.
inline constexpr std::uint32_t kFlagsPosition = 0x3ffffU;
// Position of a stream's exchange of profiles and digests of plans.
inline constexpr std::uint32_t kExchangePosition = 0x3fffeU;

}  // namespace sirtaki::engine
