#include "runtime/base/config/option_value.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>

namespace sirtaki {
namespace {

using namespace std::chrono_literals;

TEST(OptionValue, SizesTakeBinaryUnits) {
  EXPECT_EQ(*parse_bytes("0"), 0);
  EXPECT_EQ(*parse_bytes("65536"), 65536);
  EXPECT_EQ(*parse_bytes("12B"), 12);
  EXPECT_EQ(*parse_bytes("512KiB"), 512 << 10);
  EXPECT_EQ(*parse_bytes("4MiB"), 4 << 20);
  EXPECT_EQ(*parse_bytes("8GiB"), 8LL << 30);
}

TEST(OptionValue, BadSizesAreErrorsAndNeverZero) {
  for (const char* text : {"", "MiB", "-1", "4 MiB", "4mib", "4MB", "1.5MiB", "0x10", "4MiBs", "9223372036854775808",
                           "9007199254740993GiB", "+4"}) {
    const auto size = parse_bytes(text);
    ASSERT_FALSE(size) << text;
    EXPECT_EQ(size.status().code(), Code::kInvalidArgument);
    EXPECT_NE(size.status().text().find(std::string("\"") + text + "\""), std::string_view::npos);
  }
}

TEST(OptionValue, SizesPrintAsTheyParse) {
  for (const std::int64_t bytes : {0L, 1L, 1023L, 1024L, 1025L, 3L << 20, (3L << 20) + 1, 64L << 30}) {
    EXPECT_EQ(*parse_bytes(format_bytes(bytes)), bytes);
  }
  EXPECT_EQ(format_bytes(4 << 20), "4MiB");
  EXPECT_EQ(format_bytes(1536), "1536");
  EXPECT_EQ(format_bytes(0), "0");
}

TEST(OptionValue, DurationsNeedAUnit) {
  EXPECT_EQ(*parse_duration("5s"), 5s);
  EXPECT_EQ(*parse_duration("250ms"), 250ms);
  EXPECT_EQ(*parse_duration("1.5s"), 1500ms);
  EXPECT_EQ(*parse_duration("30min"), 30min);
  EXPECT_EQ(*parse_duration("2h"), 2h);
  EXPECT_EQ(*parse_duration("10us"), 10us);
  EXPECT_EQ(*parse_duration("7ns"), 7ns);
  EXPECT_EQ(*parse_duration("0s"), 0s);
  for (const char* text : {"", "5", "s", "-5s", "5 s", "5sec", "1.2.3s", ".", "1e3s", "9999999999999h", "inf", "5S"}) {
    EXPECT_FALSE(parse_duration(text)) << text;
  }
}

TEST(OptionValue, DurationsPrintAsTheyParse) {
  for (const Duration time : {Duration(0), Duration(1), Duration(1500ms), Duration(30min), Duration(8760h),
                              Duration(9'007'199'254'740'993)}) {
    EXPECT_EQ(*parse_duration(format_duration(time)), time);
  }
  EXPECT_EQ(format_duration(90s), "90s");
  EXPECT_EQ(format_duration(120s), "2min");
  EXPECT_EQ(format_duration(1500ms), "1500ms");
}

TEST(OptionValue, SwitchesHaveFourWordsEach) {
  for (const char* text : {"true", "yes", "on", "1"}) {
    EXPECT_TRUE(*parse_bool(text)) << text;
  }
  for (const char* text : {"false", "no", "off", "0"}) {
    EXPECT_FALSE(*parse_bool(text)) << text;
  }
  EXPECT_FALSE(parse_bool("maybe"));
  EXPECT_FALSE(parse_bool(""));
}

TEST(OptionValue, WholeNumbersTakeNothingElse) {
  EXPECT_EQ(*parse_int("-7"), -7);
  EXPECT_EQ(*parse_int("9223372036854775807"), std::numeric_limits<std::int64_t>::max());
  for (const char* text : {"", "1.0", " 1", "1 ", "one", "9223372036854775808"}) {
    EXPECT_FALSE(parse_int(text)) << text;
  }
}

TEST(OptionValue, PortRangesAreOrderedAndNotZero) {
  EXPECT_EQ(*parse_port_range("41000-41100"), (PortRange{41000, 41100}));
  EXPECT_EQ(*parse_port_range("5000"), (PortRange{5000, 5000}));
  EXPECT_EQ(*parse_port_range(""), PortRange{});
  for (const char* text : {"0", "0-5", "10-5", "1-", "-5", "70000", "1-70000", "a-b", "1-2-3", "1 - 2"}) {
    EXPECT_FALSE(parse_port_range(text)) << text;
  }
  for (const char* text : {"", "5000", "41000-41100"}) {
    EXPECT_EQ(format_port_range(*parse_port_range(text)), text);
  }
}

TEST(OptionValue, NearestFindsTyposAndNothingFarAway) {
  constexpr std::array<std::string_view, 3> kNames = {"net.interface", "net.address", "log.level"};
  EXPECT_EQ(nearest("net.intreface", kNames), "net.interface");
  EXPECT_EQ(nearest("log.lvl", kNames), "log.level");
  EXPECT_EQ(nearest("zzzz", kNames), "");
  EXPECT_EQ(nearest("", kNames), "");
  EXPECT_EQ(nearest(std::string(100'000, 'n'), kNames), "");
}

TEST(OptionValue, SplitKeepsEmptyParts) {
  EXPECT_EQ(split("a||b", '|'), (std::vector<std::string_view>{"a", "", "b"}));
  EXPECT_EQ(split("", '|'), (std::vector<std::string_view>{""}));
}

}  // namespace
}  // namespace sirtaki
