#include "runtime/base/wire.h"

#include <gtest/gtest.h>

#include <limits>

namespace sirtaki {
namespace {

enum class Color : std::uint8_t { kRed = 1, kBlue = 2 };

std::vector<std::byte> sample() {
  WireWriter writer;
  writer.put(std::uint8_t{7});
  writer.put(std::int64_t{-5});
  writer.put(2.5);
  writer.put(Color::kBlue);
  writer.put_string("gradient");
  writer.put_list(std::vector<std::int32_t>{1, -2, 3});
  writer.put_string("");
  return std::move(writer).take();
}

struct Sample {
  std::uint8_t small = 0;
  std::int64_t number = 0;
  double real = 0;
  Color color{};
  std::string name;
  std::vector<std::int32_t> list;
  std::string empty;
};

Sample read_sample(WireReader& reader) {
  Sample s;
  s.small = reader.get<std::uint8_t>();
  s.number = reader.get<std::int64_t>();
  s.real = reader.get<double>();
  s.color = reader.get<Color>();
  s.name = reader.get_string();
  s.list = reader.get_list<std::int32_t>();
  s.empty = reader.get_string();
  return s;
}

TEST(Wire, ReadsBackWhatWasWritten) {
  const auto bytes = sample();
  WireReader reader(bytes);
  const Sample s = read_sample(reader);
  EXPECT_TRUE(reader.finish("sample").ok());
  EXPECT_EQ(s.small, 7);
  EXPECT_EQ(s.number, -5);
  EXPECT_EQ(s.real, 2.5);
  EXPECT_EQ(s.color, Color::kBlue);
  EXPECT_EQ(s.name, "gradient");
  EXPECT_EQ(s.list, (std::vector<std::int32_t>{1, -2, 3}));
  EXPECT_EQ(s.empty, "");
}

TEST(Wire, IsLittleEndianWithFourByteLengths) {
  WireWriter writer;
  writer.put(std::uint16_t{0x0102});
  writer.put_string("ab");
  const std::vector<std::byte> expected = {std::byte{2}, std::byte{1}, std::byte{2},   std::byte{0},
                                           std::byte{0}, std::byte{0}, std::byte{'a'}, std::byte{'b'}};
  EXPECT_EQ(writer.bytes(), expected);
}

TEST(Wire, TruncationAtEveryByteIsOneError) {
  const auto bytes = sample();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    // Reads a copy, so that a sanitizer sees a read past the end.
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    WireReader reader(cut);
    (void)read_sample(reader);
    const Status status = reader.finish("sample");
    EXPECT_EQ(status.code(), Code::kCorrupt) << size;
    EXPECT_EQ(status.text(), "sample is cut short or has a bad length");
  }
}

TEST(Wire, BytesLeftOverAreAnError) {
  auto bytes = sample();
  bytes.push_back(std::byte{0});
  WireReader reader(bytes);
  (void)read_sample(reader);
  EXPECT_TRUE(reader.ok());
  EXPECT_EQ(reader.finish("sample").text(), "sample has 1 bytes too many");
}

TEST(Wire, ErrorSticksAndLaterReadsGiveZero) {
  const std::vector<std::byte> bytes(6, std::byte{0xFF});
  WireReader reader(bytes);
  EXPECT_EQ(reader.get<std::uint64_t>(), 0U);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.get<std::uint8_t>(), 0);
  EXPECT_EQ(reader.get_string(), "");
  EXPECT_TRUE(reader.get_raw(0).empty());
  EXPECT_FALSE(reader.ok());
}

TEST(Wire, HugeCountsAllocateNothing) {
  WireWriter writer;
  writer.put(std::numeric_limits<std::uint32_t>::max());
  writer.put(std::uint64_t{0});
  {
    WireReader reader(writer.bytes());
    const auto list = reader.get_list<std::uint64_t>();
    EXPECT_EQ(list.capacity(), 0U);
    EXPECT_FALSE(reader.ok());
  }
  {
    WireReader reader(writer.bytes());
    EXPECT_EQ(reader.get_string().size(), 0U);
    EXPECT_FALSE(reader.ok());
  }
  {
    WireReader reader(writer.bytes());
    EXPECT_EQ(reader.get_count(1), 0U);
    EXPECT_FALSE(reader.ok());
  }
  {
    WireReader reader(writer.bytes());
    EXPECT_TRUE(reader.get_raw(std::numeric_limits<std::size_t>::max()).empty());
    EXPECT_FALSE(reader.ok());
  }
}

TEST(Wire, CountsAreBoundedByWhatTheInputCanHold) {
  WireWriter writer;
  writer.put(std::uint32_t{3});
  writer.put(std::uint64_t{0});
  writer.put(std::uint64_t{0});
  WireReader fits(writer.bytes());
  EXPECT_EQ(fits.get_count(5), 3U);
  WireReader too_many(writer.bytes());
  EXPECT_EQ(too_many.get_count(6), 0U);
  EXPECT_FALSE(too_many.ok());
}

TEST(Wire, BorrowedBytesPointIntoTheInput) {
  WireWriter writer;
  writer.put_string("abc");
  WireReader reader(writer.bytes());
  EXPECT_EQ(reader.get_bytes().data(), writer.bytes().data() + 4);
  EXPECT_EQ(reader.remaining(), 0U);
}

TEST(Wire, CallerCanRejectAValue) {
  const auto bytes = sample();
  WireReader reader(bytes);
  reader.fail();
  EXPECT_FALSE(reader.finish("sample").ok());
}

TEST(Wire, StatusKeepsCodeTextAndBlame) {
  WireWriter out;
  put_status(out, Status(Code::kMismatch, "tensor 'w' differs", {3, "w"}));
  WireReader in(out.bytes());
  const Status back = get_status(in);
  EXPECT_TRUE(in.finish("status").ok());
  EXPECT_EQ(back.code(), Code::kMismatch);
  EXPECT_EQ(back.text(), "tensor 'w' differs");
  EXPECT_EQ(back.blame().rank, 3);
  EXPECT_EQ(back.blame().tensor, "w");
}

TEST(Wire, StatusThatSaysOkOrNothingKnownIsAnError) {
  for (const int code : {0, 250}) {
    WireWriter out;
    out.put(static_cast<std::uint8_t>(code));
    out.put(std::int32_t{0});
    out.put_string("");
    out.put_string("fine");
    WireReader in(out.bytes());
    EXPECT_FALSE(get_status(in).ok()) << code;
    EXPECT_FALSE(in.ok()) << code;
  }
}

TEST(Wire, LongTextsOfAStatusAreCut) {
  WireWriter out;
  put_status(out, Status(Code::kAborted, std::string(kMaxStatusText + 1, 'x')));
  WireReader in(out.bytes());
  EXPECT_EQ(get_status(in).text().size(), kMaxStatusText);
}

}  // namespace
}  // namespace sirtaki
