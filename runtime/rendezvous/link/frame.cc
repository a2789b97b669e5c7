#include "runtime/rendezvous/link/frame.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/rendezvous/link/membership.h"

namespace sirtaki::rendezvous {

namespace {

constexpr std::size_t kChunk = 4096;
constexpr std::size_t kMaxStatus = 2 * kMaxStatusText + 64;

}  // namespace

std::optional<std::size_t> frame_cap(std::uint8_t type) {
  switch (static_cast<FrameType>(type)) {
    case FrameType::kJoin:
      return std::size_t{1} << 20;
    case FrameType::kJoined:
    case FrameType::kSeat:
    case FrameType::kMessage:
    case FrameType::kNotice:
      return kMaxMessage;
    case FrameType::kTree:
      return kMaxTree;
    case FrameType::kRejected:
    case FrameType::kLost:
      return kMaxStatus;
    case FrameType::kLeft:
      return sizeof(std::uint32_t) + kMaxRanks * sizeof(std::int32_t);
    case FrameType::kPing:
      return sizeof(std::int64_t);
    case FrameType::kPong:
      return 2 * sizeof(std::int64_t);
    case FrameType::kLeave:
    case FrameType::kLeaveOk:
      return 0;
  }
  return std::nullopt;
}

void append_frame(std::vector<std::byte>& out, FrameType type, ConstBytes payload) {
  SRT_CHECK(payload.size() <= frame_cap(static_cast<std::uint8_t>(type)).value());
  std::byte header[kFrameHeader] = {};
  const auto length = static_cast<std::uint32_t>(payload.size());
  std::memcpy(header, &length, sizeof(length));
  header[sizeof(length)] = static_cast<std::byte>(type);
  out.insert(out.end(), std::begin(header), std::end(header));
  out.insert(out.end(), payload.begin(), payload.end());
}

std::vector<std::byte> encode_lost(Rank rank, const Status& status) {
  WireWriter out;
  out.put(static_cast<std::int32_t>(rank));
  put_status(out, status);
  return std::move(out).take();
}

Result<RankStatus> decode_lost(ConstBytes payload) {
  WireReader in(payload);
  RankStatus lost;
  lost.rank = in.get<std::int32_t>();
  lost.status = get_status(in);
  SRT_TRY(in.finish("the notice of a lost rank"));
  return lost;
}

std::vector<std::byte> encode_left(const std::vector<Rank>& ranks) {
  static_assert(sizeof(Rank) == sizeof(std::int32_t));
  WireWriter out;
  out.put_list(ranks);
  return std::move(out).take();
}

Result<std::vector<Rank>> decode_left(ConstBytes payload) {
  WireReader in(payload);
  std::vector<Rank> ranks = in.get_list<Rank>();
  if (ranks.empty()) {
    in.fail();
  }
  SRT_TRY(in.finish("the notice of ranks that left"));
  return ranks;
}

Bytes FrameDecoder::room() {
  if (begin_ == end_) {
    begin_ = end_ = 0;
    if (wanted_ <= kChunk && buffer_.size() > kChunk) {
      buffer_ = std::vector<std::byte>();  // a rare large frame must not keep its memory
    }
  }
  const std::size_t size = std::max(wanted_, kChunk);
  if (begin_ + size > buffer_.size() || end_ == buffer_.size()) {
    std::vector<std::byte> bigger(std::max(size, end_ - begin_ + 1));
    std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_),
              buffer_.begin() + static_cast<std::ptrdiff_t>(end_), bigger.begin());
    end_ -= begin_;
    begin_ = 0;
    buffer_ = std::move(bigger);
  }
  return Bytes(buffer_).subspan(end_);
}

void FrameDecoder::added(std::size_t size) {
  SRT_CHECK(size <= buffer_.size() - end_);
  end_ += size;
}

Result<std::optional<Frame>> FrameDecoder::next() {
  if (!failure_.ok()) {
    return failure_;
  }
  wanted_ = kFrameHeader;
  if (end_ - begin_ < kFrameHeader) {
    return std::optional<Frame>();
  }
  const std::byte* header = buffer_.data() + begin_;
  std::uint32_t length = 0;
  std::memcpy(&length, header, sizeof(length));
  const auto type = std::to_integer<std::uint8_t>(header[sizeof(length)]);
  const std::optional<std::size_t> cap = frame_cap(type);
  const bool clean = header[5] == std::byte{0} && header[6] == std::byte{0} && header[7] == std::byte{0};
  if (!cap || !clean || length > *cap) {
    failure_ = corrupt("a control frame of type " + std::to_string(type) + " and " + std::to_string(length) +
                       " bytes is not valid");
    return failure_;
  }
  wanted_ = kFrameHeader + length;
  if (end_ - begin_ < wanted_) {
    return std::optional<Frame>();
  }
  const Frame frame{static_cast<FrameType>(type), ConstBytes(buffer_).subspan(begin_ + kFrameHeader, length)};
  begin_ += wanted_;
  wanted_ = kFrameHeader;
  return std::optional<Frame>(frame);
}

}  // namespace sirtaki::rendezvous
