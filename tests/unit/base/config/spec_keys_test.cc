#include "runtime/base/config/spec_keys.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace sirtaki {
namespace {

std::vector<KeyInfo> some_keys() {
  return {{"rate", KeyKind::kDecimal, 0, 0, 10 * kDecimalOne}, {"wait", KeyKind::kCountOrAuto, -1, -1, 100}};
}

TEST(SpecKeys, DecimalsAreExactTo12Places) {
  const KeyInfo key = some_keys()[0];
  const std::vector<std::pair<std::string, std::int64_t>> cases = {
      {"0.0175", 17'500'000'000}, {"1", kDecimalOne}, {".5", kDecimalOne / 2}, {"0", 0}, {"0.000000000001", 1}};
  for (const auto& [text, value] : cases) {
    std::vector<std::int64_t> values = initial_values(some_keys());
    const Status read = read_keys("it", some_keys(), "rate=" + text, values);
    ASSERT_TRUE(read.ok()) << read.to_string();
    EXPECT_EQ(values[0], value) << text;
    EXPECT_EQ(values[1], -1) << "not named, stays";
  }
  EXPECT_EQ(decimal_text(17'500'000'000), "0.0175");
  EXPECT_EQ(value_text(key, 3 * kDecimalOne), "3");
  EXPECT_EQ(accepted_values(key), "a number such as 0.0175, from 0 to 10");
}

TEST(SpecKeys, ANumberMayBeLeftToTheProgram) {
  const KeyInfo key = some_keys()[1];
  std::vector<std::int64_t> values = {0, 0};
  ASSERT_TRUE(read_keys("it", some_keys(), "wait=auto", values).ok());
  EXPECT_EQ(values[1], -1);
  ASSERT_TRUE(read_keys("it", some_keys(), "wait = 7", values).ok());
  EXPECT_EQ(values[1], 7);
  EXPECT_EQ(value_text(key, -1), "auto");
  EXPECT_EQ(value_text(key, 7), "7");
}

TEST(SpecKeys, ErrorsBeginWithTheOwner) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"rat=1", "it: it has no key 'rat' (did you mean rate?); its keys are rate, wait"},
      {"rate=11", "it: rate is '11'; it must be a number such as 0.0175, from 0 to 10"},
      {"rate=50%", "it: rate is '50%'; it must be a number such as 0.0175, from 0 to 10"},
      {"wait=soon", "it: wait is 'soon'; it must be auto or a whole number from 0 to 100"},
      {"wait=-1", "it: wait is '-1'; it must be auto or a whole number from 0 to 100"},
      {"wait", "it: 'wait' is not key=value"},
      {"wait=1,wait=2", "it: key 'wait' is given twice"},
  };
  for (const auto& [text, error] : cases) {
    std::vector<std::int64_t> values = initial_values(some_keys());
    EXPECT_EQ(read_keys("it", some_keys(), text, values).text(), error);
  }
}

}  // namespace
}  // namespace sirtaki
