#include "runtime/base/config/config_toml.h"

#include <gtest/gtest.h>

namespace sirtaki {
namespace {

std::string error_of(std::string_view text) {
  const auto entries = parse_toml(text, "t.toml");
  EXPECT_FALSE(entries) << text;
  return std::string(entries.status().text());
}

TEST(ConfigToml, FlattensSectionsDottedAndQuotedKeys) {
  const auto entries = parse_toml("top = 1\nnet.a = \"x\"\n[log]\nb = true\n\"c d\" = 1.5\n", "t.toml");
  ASSERT_TRUE(entries) << entries.status().to_string();
  ASSERT_EQ(entries->size(), 4U);
  EXPECT_EQ((*entries)[0].key, "top");
  EXPECT_EQ((*entries)[0].value, "1");
  EXPECT_EQ((*entries)[1].key, "net.a");
  EXPECT_EQ((*entries)[1].line, 2);
  EXPECT_EQ((*entries)[2].key, "log.b");
  EXPECT_EQ((*entries)[2].value, "true");
  EXPECT_EQ((*entries)[3].key, "log.c d");
  EXPECT_EQ((*entries)[3].value, "1.5");
  EXPECT_EQ((*entries)[3].line, 5);
}

TEST(ConfigToml, EmptyTextHasNoEntries) {
  EXPECT_TRUE(parse_toml("", "t.toml")->empty());
  EXPECT_TRUE(parse_toml("# only a comment", "t.toml")->empty());
  EXPECT_TRUE(parse_toml("[net]\n", "t.toml")->empty());
}

TEST(ConfigToml, SyntaxErrorsNameTheLine) {
  EXPECT_EQ(error_of("a = 1\nb = \n").substr(0, 9), "t.toml:2:");
  EXPECT_EQ(error_of("a = 1\na = 2\n").substr(0, 9), "t.toml:2:");
  EXPECT_EQ(error_of("a = \"open").substr(0, 9), "t.toml:1:");
  EXPECT_EQ(error_of("[=").substr(0, 9), "t.toml:1:");
  EXPECT_EQ(error_of("\xFF\xFE = 1").substr(0, 7), "t.toml:");
}

TEST(ConfigToml, LettersBeyondAsciiAreTextAndNowhereElse) {
  const auto entries = parse_toml("# \xC3\xA9\xEF\xB8\x8F\na = \"\xC3\xA9\xE3\x80\x81\"\n", "t.toml");
  ASSERT_TRUE(entries) << entries.status().to_string();
  EXPECT_EQ(entries->at(0).value, "\xC3\xA9\xE3\x80\x81");
  for (const char* letter : {"\xC3\xA9", "\xD0\xB6", "\xE2\xB1\x9E", "\xE3\x81\x82", "\xEF\xB8\x8F"}) {
    EXPECT_EQ(error_of(std::string(letter) + " = 1").substr(0, 9), "t.toml:1:");
    EXPECT_EQ(error_of("a = 1 " + std::string(letter)).substr(0, 9), "t.toml:1:");
    EXPECT_EQ(error_of("[" + std::string(letter) + "]").substr(0, 9), "t.toml:1:");
  }
}

TEST(ConfigToml, ListsDatesAndDeepTablesAreRefused) {
  EXPECT_NE(error_of("a = [1, 2]").find("a is a list or a date"), std::string::npos);
  EXPECT_NE(error_of("a = 2020-01-01").find("a is a list or a date"), std::string::npos);
  EXPECT_NE(error_of("[[a]]\nb = 1").find("a is a list or a date"), std::string::npos);
  EXPECT_NE(error_of("[a.b]\nc = 1").find("a.b is a table inside a section"), std::string::npos);
}

TEST(ConfigToml, HugeAndDeepTextsAreRefusedBeforeParsing) {
  EXPECT_NE(error_of(std::string(300'000, ' ')).find("more than 262144 bytes"), std::string::npos);
  EXPECT_NE(error_of("x = \"" + std::string(9'000, 'x') + "\"").find("t.toml:1 has more than"), std::string::npos);
  std::string deep = "a";
  for (int i = 0; i < 4000; ++i) {
    deep += ".a";
  }
  EXPECT_NE(error_of(deep + " = 1").find("is a table inside a section"), std::string::npos);
  EXPECT_FALSE(parse_toml("x = " + std::string(4000, '['), "t.toml"));
}

}  // namespace
}  // namespace sirtaki
