#include "runtime/net/device/launch_messages.h"

#include <gtest/gtest.h>

namespace sirtaki::net {
namespace {

using Says = LaunchWord::Kind;

constexpr std::uint64_t kTag = 0x8000000000000001;

TEST(LaunchMessages, RoundTrip) {
  std::vector<LaunchWord> words = {{Says::kReady, OpTag(kTag), -7, 9, std::uint64_t{1} << 40},
                                   {Says::kWithdraw, OpTag(2), 0},
                                   {Says::kPlaced, OpTag(3), 1},
                                   {Says::kPlaced, OpTag(5), 0},
                                   {Says::kWithdrawn, OpTag(4), 0},
                                   {Says::kGone, OpTag(), 2},
                                   {Says::kRanks, OpTag(~std::uint64_t{0}), 3, 1},
                                   {Says::kAble, OpTag(), 22809, 1},
                                   {Says::kConnected, OpTag(), 1, 2},
                                   {Says::kConnect, OpTag(1), 0, 2},
                                   {Says::kOpen, OpTag(1), 0, 2},
                                   {Says::kRefused, OpTag(1), 4, 2, 21801},
                                   {Says::kStopped, OpTag(), 0}};
  for (int round = 0; round < 2; ++round) {
    const auto bytes = encode_launch_words(words);
    EXPECT_EQ(bytes.size(), kLaunchWordsBytes);
    const auto decoded = decode_launch_words(bytes);
    ASSERT_TRUE(decoded) << decoded.status().to_string();
    EXPECT_EQ(*decoded, words);
    words.assign(kMostLaunchWords, {Says::kReady, OpTag(kTag), 1, kHostsSet, 4});
  }
}

TEST(LaunchMessages, HaveTheDocumentedBytes) {
  const auto bytes = encode_launch_words(std::vector<LaunchWord>{{Says::kReady, OpTag(kTag), -2, 5, 3}});
  const std::vector<int> begin = {1, 0,    0,    0,    1,    5,    0, 0, 0, 1, 0, 0, 0, 0, 0,
                                  0, 0x80, 0xfe, 0xff, 0xff, 0xff, 3, 0, 0, 0, 0, 0, 0, 0, 0};
  for (std::size_t i = 0; i < begin.size(); ++i) {
    EXPECT_EQ(std::to_integer<int>(bytes[i]), begin[i]) << i;
  }
}

TEST(LaunchMessages, RejectWhatNoRankWrites) {
  for (const LaunchWord& word :
       {LaunchWord{Says::kRanks, OpTag(), 0, 1}, LaunchWord{Says::kAble, OpTag(1), 1, 1},
        LaunchWord{Says::kConnected, OpTag(), 2, 1}, LaunchWord{Says::kConnect, OpTag(1), 1, 2},
        LaunchWord{Says::kOpen, OpTag(1), 0, 2, 1}, LaunchWord{Says::kRefused, OpTag(1), 1, 2, std::uint64_t{1} << 31},
        LaunchWord{Says::kStopped, OpTag(1)}, LaunchWord{Says::kStopped, OpTag(), 1},
        LaunchWord{Says::kStopped, OpTag(), 0, 2}}) {
    EXPECT_EQ(decode_launch_words(encode_launch_words(std::vector{word})).status().code(), Code::kCorrupt)
        << static_cast<int>(word.kind);
  }
}

TEST(LaunchMessages, RejectDamagedBytes) {
  const auto good = encode_launch_words(
      std::vector<LaunchWord>{{Says::kWithdraw, OpTag(1), 0}, {Says::kGone, OpTag(), 1}, {Says::kPlaced, OpTag(2), 1}});
  struct Damage {
    std::size_t at;
    int value;
    const char* what;
  };
  for (const Damage& damage :
       {Damage{0, 0, "no word"}, Damage{0, 21, "too many words"}, Damage{1, 1, "far too many"}, Damage{4, 0, "no kind"},
        Damage{4, 13, "an unknown kind"}, Damage{5, 1, "a set of what has none"},
        Damage{17, 1, "a number of what has none"}, Damage{21, 1, "a size of what has none"},
        Damage{34, 1, "a tag of a rank"}, Damage{45, 0x80, "a negative rank"}, Damage{0, 2, "more words than counted"},
        Damage{67, 2, "no flag"}, Damage{511, 1, "something at the end"}}) {
    auto bytes = good;
    bytes[damage.at] = static_cast<std::byte>(damage.value);
    EXPECT_EQ(decode_launch_words(bytes).status().code(), Code::kCorrupt) << damage.what;
  }
  EXPECT_EQ(decode_launch_words(ConstBytes(good).first(511)).status().code(), Code::kCorrupt);
  EXPECT_EQ(decode_launch_words({}).status().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace sirtaki::net
