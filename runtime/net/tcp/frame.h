// Frame headers of the data connections: 32 bytes, little-endian, before every payload.
//
//   kWelcome   the acceptor's answer after the handshake: its rank and limits (channel.h); flags: see push_exponent()
//   kEager     a small message with its payload (`length` bytes)
//   kRts       request to send a large message: length = its size
//   kCts       clear to send: length = the size that the receiver expects
//   kData      a fragment of a large message with its payload (`length` bytes)
//   kCredit    `length` bytes of the eager window are free again
//   kReject    the receiver expected `length` bytes and `check` instead
//   kBye       the last frame
//   kPush      a large message follows without permission, within the eager window: length = its size
//   kPushed    a fragment of such a message with its payload (`length` bytes)
// Plain values; docs/wire_format/data.md specifies the protocol.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::net {

enum class FrameType : std::uint8_t {
  kWelcome = 1,
  kEager = 2,
  kRts = 3,
  kCts = 4,
  kData = 5,
  kCredit = 6,
  kReject = 7,
  kBye = 8,
  kPush = 9,
  kPushed = 10,
};

struct FrameHeader {
  FrameType type = FrameType::kBye;
  std::uint8_t flags = 0;  // kWelcome only
  Epoch epoch;
  OpTag tag;
  std::uint32_t slot = 0;
  std::uint32_t check = 0;
  std::uint64_t length = 0;
  bool operator==(const FrameHeader&) const = default;
};

inline constexpr std::size_t kFrameBytes = 32;
// Limit of the flags of kWelcome.
inline constexpr std::uint8_t kMostPushExponent = 40;
using FrameBytes = std::array<std::byte, kFrameBytes>;

FrameBytes encode_frame(const FrameHeader& header);
// Returns kCorrupt for a wrong magic, an unknown type, flags without a meaning, or an epoch other than `epoch`.
Result<FrameHeader> decode_frame(std::span<const std::byte, kFrameBytes> bytes, Epoch epoch);
// Returns whether `length` bytes follow the header.
bool has_payload(FrameType type);

}  // namespace sirtaki::net
