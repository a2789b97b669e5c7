// Frames of a control connection after its handshake: {u32 payload length, u8 type, 3 zero bytes}, then the payload.
// Pure; shared by Link, Server and Client. Every type has its own length cap, checked before memory is taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"
#include "runtime/base/wire.h"

namespace sirtaki::rendezvous {

enum class FrameType : std::uint8_t {
  kJoin = 1,      // client: JoinRequest
  kJoined = 2,    // server: Membership
  kRejected = 3,  // server: Status; the connection ends after it
  kMessage = 4,   // both ways: bytes of the handlers
  kLost = 5,      // server: i32 rank, Status; if the rank is the receiver, the connection ends after it
  kLeft = 6,      // server: list of i32 ranks, not empty
  kLeave = 7,     // client, or either end of a branch: empty
  kLeaveOk = 8,   // the answer: empty
  kPing = 9,      // server: i64 time of its clock
  kPong = 10,     // client: the time of the kPing, i64 time of its own clock
  kTree = 11,     // both ways: bytes of the handlers, on behalf of several ranks
  kSeat = 12,     // server, instead of kJoined in an elastic job: i32 rank of the receiver, Membership
  kNotice = 13,   // both ways, in the epochs of an elastic job: bytes of the handlers about its members
};

inline constexpr std::size_t kFrameHeader = 8;
inline constexpr std::size_t kMaxMessage = std::size_t{16} << 20;              // bytes of one control message
inline constexpr std::size_t kMaxTree = kMaxMessage + (std::size_t{1} << 20);  // bytes of a message with its ranks

// Returns the longest payload of a type in bytes; nullopt for an unknown type.
std::optional<std::size_t> frame_cap(std::uint8_t type);

// Appends header and payload to `out`. Requires a payload within the cap of the type.
void append_frame(std::vector<std::byte>& out, FrameType type, ConstBytes payload);

struct RankStatus {
  Rank rank = -1;
  Status status;
};
std::vector<std::byte> encode_lost(Rank rank, const Status& status);
Result<RankStatus> decode_lost(ConstBytes payload);

std::vector<std::byte> encode_left(const std::vector<Rank>& ranks);
// Returns at least one rank.
Result<std::vector<Rank>> decode_left(ConstBytes payload);

struct Frame {
  FrameType type = FrameType::kMessage;
  ConstBytes payload;  // borrowed from the decoder until its next call
};

// Splits a byte stream into frames: read into room(), call added(), then next() until it returns no frame.
class FrameDecoder {
 public:
  // Returns free space after the received bytes, at least one byte.
  Bytes room();
  void added(std::size_t size);
  // Returns the next whole frame, or nullopt. An error (unknown type, excessive length, malformed header) is final.
  Result<std::optional<Frame>> next();

 private:
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0;  // start of the bytes that next() has not returned yet
  std::size_t end_ = 0;    // end of the received bytes
  std::size_t wanted_ = kFrameHeader;
  Status failure_;
};

}  // namespace sirtaki::rendezvous
