// Tags of operations (OpTag): equal on all ranks, different for everything in flight in an epoch.
//
//   operation by name   0 | id 24 | stage 1 | piece 2 | use 20 | fingerprint 16
//   stream partition    1 | stream 16 | attempt 15 | position 18 | phase 4 | step 10
// The coordinator assigns id, stream and attempt; names.h counts uses, and gradient_stream.h counts steps. Both
// counters wrap. This is safe, because nothing in flight is a hundred thousand uses or a thousand steps old. Attempts
// wrap, too, and every step may be given up: each time the link remembers at least one more group of tags
// (stream_step_tags), and it forgets the oldest long before its attempt number recurs. The fingerprint separates ranks
// that disagree on an operation. The phases of a partition are the exchanges of its reduction; a dense partition has
// one.
#pragma once

#include <cstdint>

#include "runtime/base/types.h"
#include "runtime/net/link/tag_group.h"
#include "runtime/net/link/tombstones.h"

namespace sirtaki::engine {

enum class OpStage : std::uint8_t { kSizes = 0, kPayload = 1 };

// Returns the tag of one exchange; `piece` is the piece of the payload modulo 4 (named_parts.h).
constexpr OpTag op_tag(std::uint32_t id, OpStage stage, std::uint32_t piece, std::uint64_t use,
                       std::uint16_t fingerprint) {
  return OpTag((static_cast<std::uint64_t>(id & 0xffffffU) << 39) | (static_cast<std::uint64_t>(stage) << 38) |
               (static_cast<std::uint64_t>(piece & 3U) << 36) | ((use & 0xfffffU) << 16) | fingerprint);
}

// Returns all tags of one operation.
constexpr net::TagGroup op_tags(std::uint32_t id, std::uint64_t use, std::uint16_t fingerprint) {
  return {op_tag(id, OpStage::kSizes, 0, use, fingerprint), ~(7ULL << 36)};
}

// Returns a tag for the agreement of ranks on their GPUs; its id belongs to no operation.
constexpr OpTag device_tag(std::uint16_t number) {
  return op_tag(0xffffffU, OpStage::kSizes, 0, 0, number);
}

// Returns the tag of the messages about the order of launches.
constexpr OpTag launch_tag() {
  return device_tag(2);
}

// Returns a tag for the agreement of the ranks of a process set on their GPUs; `set` is its number in the order of
// launches.
constexpr OpTag device_set_tag(std::uint32_t set) {
  return op_tag(0xffffffU, OpStage::kPayload, 0, set, 0);
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

// Returns the tags of one step: every position and phase.
constexpr net::TagGroup stream_step_tags(StreamId stream, std::uint32_t attempt, std::uint64_t step) {
  return {stream_tag(stream, attempt, 0, step), ~(0x3fffffULL << 10)};
}
// Returns all tags of a stream.
constexpr net::TagGroup stream_tags(StreamId stream) {
  return {stream_tag(stream, 0, 0, 0), ~0ULL << 47};
}

// Position at which ranks exchange which gradients they had; beyond every partition.
inline constexpr std::uint32_t kFlagsPosition = 0x3ffffU;
// Position at which ranks exchange profiles and digests of plans.
inline constexpr std::uint32_t kExchangePosition = 0x3fffeU;
// Position of the commit gate.
inline constexpr std::uint32_t kGatePosition = 0x3fffdU;

}  // namespace sirtaki::engine
