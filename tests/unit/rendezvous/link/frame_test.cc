#include "runtime/rendezvous/link/frame.h"

#include <gtest/gtest.h>

#include <random>

#include "runtime/base/check.h"
#include "runtime/rendezvous/clock_filter.h"
#include "runtime/rendezvous/join_round.h"

namespace sirtaki::rendezvous {
namespace {

using namespace std::chrono_literals;

struct Copy {
  FrameType type;
  std::vector<std::byte> payload;
};

// Decodes `stream` in pieces of `piece` bytes; stops at the first error.
Result<std::vector<Copy>> decode(ConstBytes stream, std::size_t piece) {
  FrameDecoder decoder;
  std::vector<Copy> frames;
  while (!stream.empty()) {
    const Bytes room = decoder.room();
    EXPECT_GT(room.size(), 0u);
    const std::size_t size = std::min({piece, room.size(), stream.size()});
    std::copy_n(stream.begin(), size, room.begin());
    decoder.added(size);
    stream = stream.subspan(size);
    while (true) {
      SRT_ASSIGN(const auto frame, decoder.next());
      if (!frame) {
        break;
      }
      frames.push_back({frame->type, {frame->payload.begin(), frame->payload.end()}});
    }
  }
  return frames;
}

TEST(Frame, AStreamIsCutAtAnyPieceSize) {
  std::vector<std::byte> stream;
  std::vector<std::vector<std::byte>> payloads;
  for (const std::size_t size : {0u, 1u, 7u, 4088u, 4096u, 100000u, 3u}) {
    payloads.emplace_back(size, static_cast<std::byte>(size));
    append_frame(stream, FrameType::kMessage, payloads.back());
  }
  append_frame(stream, FrameType::kLeave, {});
  for (const std::size_t piece : {1u, 5u, 8u, 4096u, 1u << 20}) {
    const auto frames = decode(stream, piece);
    ASSERT_TRUE(frames);
    ASSERT_EQ(frames->size(), payloads.size() + 1);
    for (std::size_t i = 0; i < payloads.size(); ++i) {
      EXPECT_EQ((*frames)[i].payload, payloads[i]);
    }
    EXPECT_EQ(frames->back().type, FrameType::kLeave);
  }
}

TEST(Frame, EveryTypeHasACapThatIsChecked) {
  for (int type = 0; type < 256; ++type) {
    const auto cap = frame_cap(static_cast<std::uint8_t>(type));
    EXPECT_EQ(cap.has_value(), type >= 1 && type <= 13) << type;
    std::vector<std::byte> header(kFrameHeader);
    const auto length = static_cast<std::uint32_t>(cap.value_or(0) + 1);
    std::memcpy(header.data(), &length, sizeof(length));
    header[4] = static_cast<std::byte>(type);
    EXPECT_EQ(decode(header, 8).status().code(), Code::kCorrupt) << type;
  }
  std::vector<std::byte> out;
  EXPECT_THROW(append_frame(out, FrameType::kLeave, std::vector<std::byte>(1)), BugError);
}

TEST(Frame, PaddingThatIsNotZeroIsRefused) {
  std::vector<std::byte> stream;
  append_frame(stream, FrameType::kLeave, {});
  stream[6] = std::byte{1};
  EXPECT_FALSE(decode(stream, 8));
}

TEST(StatusOnTheWire, KeepsCodeTextAndBlameAndRefusesTruncation) {
  const Status before(Code::kStuck, "all wait", {3, "layer1.weight"});
  const auto bytes = encode_lost(7, before);
  const auto after = decode_lost(bytes);
  ASSERT_TRUE(after);
  EXPECT_EQ(after->rank, 7);
  EXPECT_EQ(after->status.to_string(), before.to_string());
  EXPECT_EQ(after->status.blame().rank, 3);
  EXPECT_EQ(after->status.blame().tensor, "layer1.weight");
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(decode_lost(ConstBytes(bytes).first(size))) << size;
  }
}

TEST(StatusOnTheWire, AnUnknownCodeIsAnErrorAndLongTextsAreCut) {
  auto bytes = encode_lost(7, Status(Code::kBug, "x"));
  bytes[4] = std::byte{200};
  EXPECT_FALSE(decode_lost(bytes));
  const auto big = encode_lost(0, Status(Code::kBug, std::string(1 << 20, 'x'), {0, std::string(1 << 20, 't')}));
  EXPECT_LE(big.size(), frame_cap(static_cast<std::uint8_t>(FrameType::kLost)).value());
  EXPECT_TRUE(decode_lost(big));
}

TEST(ClockFilter, TheShortestRoundTripOfTheWindowCounts) {
  ClockFilter filter;
  EXPECT_EQ(filter.offset(), Duration::zero());
  const TimePoint start{1h};
  auto at = [&](Duration t) { return start + t; };
  filter.add(at(0ms), at(100ms), at(50ms + 7s + 40ms));  // slow way back
  EXPECT_EQ(filter.offset(), 7s + 40ms);
  filter.add(at(200ms), at(202ms), at(201ms + 7s));
  EXPECT_EQ(filter.offset(), 7s);
  filter.add(at(300ms), at(400ms), at(350ms + 9s));
  EXPECT_EQ(filter.offset(), 7s);
  filter.add(at(500ms), at(400ms), at(0ms));
  EXPECT_EQ(filter.samples(), 3u);
  for (std::size_t i = 0; i < ClockFilter::kWindow; ++i) {
    filter.add(at(1s), at(1s + 10ms), at(1s + 5ms + 8s));
  }
  EXPECT_EQ(filter.offset(), 8s) << "an old clock reading must not count for ever";
}

TEST(RanksText, IsShortForLongLists) {
  EXPECT_EQ(ranks_text({3}), "rank 3");
  EXPECT_EQ(ranks_text({0, 1}), "ranks 0, 1");
  EXPECT_EQ(ranks_text({0, 2, 3, 4, 9}), "ranks 0, 2-4, 9");
  std::vector<Rank> odd;
  for (Rank rank = 1; rank < 100; rank += 2) {
    odd.push_back(rank);
  }
  EXPECT_EQ(ranks_text(odd), "ranks 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23 and 38 more");
}

}  // namespace
}  // namespace sirtaki::rendezvous
