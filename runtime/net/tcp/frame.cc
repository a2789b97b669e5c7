#include "runtime/net/tcp/frame.h"

#include <algorithm>
#include <string>

#include "runtime/base/wire.h"

namespace sirtaki::net {
namespace {

constexpr std::uint16_t kMagic = 0x5354;

template <class T>
void store(FrameBytes& out, std::size_t offset, T value) {
  std::memcpy(out.data() + offset, &value, sizeof(value));
}

template <class T>
T load(std::span<const std::byte, kFrameBytes> in, std::size_t offset) {
  T value{};
  std::memcpy(&value, in.data() + offset, sizeof(value));
  return value;
}

}  // namespace

FrameBytes encode_frame(const FrameHeader& header) {
  FrameBytes out{};
  store(out, 0, kMagic);
  store(out, 2, header.type);
  store(out, 3, header.flags);
  store(out, 4, header.epoch.value);
  store(out, 8, header.tag.value);
  store(out, 16, header.slot);
  store(out, 20, header.check);
  store(out, 24, header.length);
  return out;
}

Result<FrameHeader> decode_frame(std::span<const std::byte, kFrameBytes> bytes, Epoch epoch) {
  FrameHeader header;
  if (load<std::uint16_t>(bytes, 0) != kMagic) {
    return corrupt("a data frame does not start with its magic number");
  }
  const auto type = load<std::uint8_t>(bytes, 2);
  if (type < static_cast<std::uint8_t>(FrameType::kWelcome) || type > static_cast<std::uint8_t>(FrameType::kPushed)) {
    return corrupt("a data frame has the unknown type " + std::to_string(type));
  }
  header.type = static_cast<FrameType>(type);
  header.flags = load<std::uint8_t>(bytes, 3);
  if (header.flags > (header.type == FrameType::kWelcome ? kMostPushExponent : 0)) {
    return corrupt("a data frame has the unknown flags " + std::to_string(header.flags));
  }
  header.epoch = Epoch(load<std::uint32_t>(bytes, 4));
  if (header.epoch != epoch) {
    return corrupt("a data frame belongs to epoch " + std::to_string(header.epoch.value) + " instead of " +
                   std::to_string(epoch.value));
  }
  header.tag = OpTag(load<std::uint64_t>(bytes, 8));
  header.slot = load<std::uint32_t>(bytes, 16);
  header.check = load<std::uint32_t>(bytes, 20);
  header.length = load<std::uint64_t>(bytes, 24);
  return header;
}

bool has_payload(FrameType type) {
  return type == FrameType::kEager || type == FrameType::kData || type == FrameType::kPushed;
}

}  // namespace sirtaki::net
