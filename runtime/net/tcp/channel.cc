#include "runtime/net/tcp/channel.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/net/tcp/channel_impl.h"

namespace sirtaki::net {
namespace {

constexpr std::size_t kScratchBytes = 64 * 1024;  // several small frames in one read
// A payload with more bytes to come than this is read with little behind it, a shorter one with a full scratch buffer.
constexpr std::size_t kLargeRest = 16 * 1024;
// Bytes read behind a large payload: the next headers, but little of the next payload, which would have to be copied.
constexpr std::size_t kBehindPayload = 512;
// Bytes that are copied in a microsecond, by a low estimate; and the fewest messages of push_bytes in a window.
constexpr std::int64_t kCopiedInUs = 1000;
constexpr std::size_t kPushesInWindow = 4;
// Cost of a message beside its bytes, so that empty messages are bounded, too.
constexpr std::size_t kMessageCost = 64;

}  // namespace

std::uint8_t push_exponent(Duration round_trip, const ChannelLimits& limits) {
  const std::int64_t copied = std::chrono::duration_cast<std::chrono::microseconds>(round_trip).count() * kCopiedInUs;
  const std::size_t most = std::min(static_cast<std::size_t>(copied), limits.window_bytes / kPushesInWindow);
  return most < std::max(2 * limits.eager_bytes, std::size_t{1}) ? 0
                                                                 : static_cast<std::uint8_t>(std::bit_width(most) - 1);
}

FrameHeader welcome_frame(Epoch epoch, Rank acceptor, const ChannelLimits& limits, std::uint8_t push_exponent) {
  FrameHeader header;
  header.type = FrameType::kWelcome;
  header.flags = push_exponent;
  header.epoch = epoch;
  header.tag = OpTag(limits.window_bytes);
  header.slot = static_cast<std::uint32_t>(limits.fragment_bytes);
  header.check = static_cast<std::uint32_t>(acceptor);
  header.length = limits.eager_bytes;
  return header;
}

Rank acceptor_of_welcome(const FrameHeader& header) {
  return static_cast<Rank>(header.check);
}

ChannelLimits limits_of_welcome(const FrameHeader& header) {
  ChannelLimits limits;
  limits.eager_bytes = static_cast<std::size_t>(header.length);
  limits.window_bytes = static_cast<std::size_t>(header.tag.value);
  limits.fragment_bytes = header.slot;
  return limits;
}

Channel::Channel(const Shared& shared, Rank peer, std::size_t fragment_bytes)
    : shared_(shared),
      peer_(peer),
      outbox_(std::min(shared.limits.fragment_bytes, fragment_bytes)),
      credit_(shared.limits.window_bytes),
      scratch_(kScratchBytes) {}

Channel::~Channel() = default;

std::size_t Channel::cost(std::size_t bytes) {
  return bytes + kMessageCost;
}

FrameHeader Channel::frame(FrameType type, const Envelope& envelope, std::uint64_t length) const {
  FrameHeader header;
  header.type = type;
  header.epoch = shared_.epoch;
  header.tag = envelope.tag;
  header.slot = envelope.slot;
  header.check = envelope.check;
  header.length = length;
  return header;
}

void Channel::welcome() {
  outbox_.push_control(welcome_frame(shared_.epoch, shared_.rank, shared_.limits, push_exponent_));
}

void Channel::say_bye() {
  outbox_.push_control(frame(FrameType::kBye, {}, 0));
}

void Channel::cancel(const TagGroup& tags, const Status& cause) {
  cancel_sends(tags, cause);
  cancel_receives(tags, cause);
}

void Channel::fail(const Status& cause, bool keep_arrived) {
  failed_.update(cause);
  fail_sends(failed_);
  fail_receives(failed_, keep_arrived);
}

std::size_t Channel::targets(std::span<iovec> out) {
  if (scratch_begin_ == scratch_end_) {
    scratch_begin_ = 0;
    scratch_end_ = 0;
  }
  // A payload is read directly into its target once the scratch memory holds no part of it.
  if (incoming_.left > 0 && incoming_.to != nullptr && scratch_end_ == 0) {
    const auto rest = static_cast<std::size_t>(incoming_.left);
    out[0] = {incoming_.to, rest};
    out[1] = {scratch_.data(), rest > kLargeRest ? kBehindPayload : kScratchBytes};
    return 2;
  }
  if (scratch_begin_ > 0) {
    std::memmove(scratch_.data(), scratch_.data() + scratch_begin_, scratch_end_ - scratch_begin_);
    scratch_end_ -= scratch_begin_;
    scratch_begin_ = 0;
  }
  out[0] = {scratch_.data() + scratch_end_, scratch_.size() - scratch_end_};
  return 1;
}

Status Channel::arrived(std::size_t count) {
  if (incoming_.left > 0 && incoming_.to != nullptr && scratch_end_ == 0) {
    const std::size_t direct = std::min(count, static_cast<std::size_t>(incoming_.left));
    incoming_.to += direct;
    incoming_.left -= direct;
    count -= direct;
    if (incoming_.left == 0) {
      on_payload_end();
    }
  }
  scratch_end_ += count;
  SRT_CHECK(scratch_end_ <= scratch_.size());
  ConstBytes bytes(scratch_.data() + scratch_begin_, scratch_end_ - scratch_begin_);
  const std::size_t before = bytes.size();
  Status status = on_bytes(bytes);
  scratch_begin_ += before - bytes.size();
  return status;
}

Status Channel::read(ConstBytes bytes) {
  while (!bytes.empty()) {
    std::array<iovec, 2> out{};
    const std::size_t used = targets(out);
    std::size_t count = 0;
    for (std::size_t i = 0; i < used && !bytes.empty(); ++i) {
      const std::size_t step = std::min(out[i].iov_len, bytes.size());
      std::memcpy(out[i].iov_base, bytes.data(), step);
      bytes = bytes.subspan(step);
      count += step;
    }
    SRT_TRY(arrived(count));
  }
  return {};
}

// Consumes complete headers and all available bytes of payloads; leaves an incomplete header.
Status Channel::on_bytes(ConstBytes& bytes) {
  while (true) {
    if (incoming_.left > 0) {
      const std::size_t step = std::min(bytes.size(), static_cast<std::size_t>(incoming_.left));
      if (incoming_.to != nullptr && step > 0) {
        std::memcpy(incoming_.to, bytes.data(), step);
        incoming_.to += step;
      }
      bytes = bytes.subspan(step);
      incoming_.left -= step;
      if (incoming_.left > 0) {
        return {};
      }
      on_payload_end();
    }
    if (bytes.size() < kFrameBytes) {
      return {};
    }
    SRT_ASSIGN(const FrameHeader header, decode_frame(bytes.first<kFrameBytes>(), shared_.epoch));
    bytes = bytes.subspan(kFrameBytes);
    SRT_TRY(on_header(header));
  }
}

Status Channel::on_header(const FrameHeader& header) {
  if (peer_bye_) {
    return corrupt("rank " + std::to_string(peer_) + " went on after its last frame");
  }
  incoming_.header = header;
  incoming_.left = has_payload(header.type) ? header.length : 0;
  incoming_.to = nullptr;
  switch (header.type) {
    case FrameType::kEager:
      SRT_TRY(on_eager(header));
      break;
    case FrameType::kData:
      SRT_TRY(on_data(header));
      break;
    case FrameType::kPushed:
      SRT_TRY(on_pushed(header));
      break;
    case FrameType::kPush:
      return on_push(header);
    case FrameType::kRts:
      return on_rts(header);
    case FrameType::kCts:
      return on_cts(header);
    case FrameType::kCredit:
      return on_credit(header);
    case FrameType::kReject:
      on_reject(header);
      return {};
    case FrameType::kBye:
      on_bye();
      return {};
    case FrameType::kWelcome:
      return corrupt("rank " + std::to_string(peer_) + " sent a second welcome");
  }
  if (incoming_.left == 0) {
    on_payload_end();
  }
  return {};
}

void Channel::on_payload_end() {
  if (incoming_.header.type == FrameType::kEager) {
    on_eager_end();
  } else {
    on_data_end();
  }
  incoming_.to = nullptr;
}

void Channel::on_bye() {
  peer_bye_ = true;
  // All earlier messages of the peer have arrived before this frame.
  fail({Code::kPeerLost, "rank " + std::to_string(peer_) + " has left", {peer_, {}}}, true);
}

}  // namespace sirtaki::net
