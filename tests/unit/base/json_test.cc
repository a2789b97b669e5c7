#include "runtime/base/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace sirtaki {
namespace {

std::string quoted(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

TEST(Json, WritesNestedValuesWithTheirCommas) {
  JsonWriter json;
  json.begin_object();
  json.key("a").value(1).key("b").begin_array().value("x").value(true).begin_object().end_object().end_array();
  json.key("c").value(0.5).key("d").value(std::numeric_limits<std::uint64_t>::max());
  json.end_object();
  EXPECT_EQ(json.text(), R"({"a":1,"b":["x",true,{}],"c":0.5,"d":18446744073709551615})");
}

TEST(Json, NumbersThatJsonCannotSayAreNull) {
  JsonWriter json;
  json.begin_array().value(std::nan("")).value(std::numeric_limits<double>::infinity()).value(-1.0).end_array();
  EXPECT_EQ(json.text(), "[null,null,-1]");
}

TEST(Json, StringsAreEscaped) {
  EXPECT_EQ(quoted("a\"b\\c\n\t\r\x01"), "\"a\\\"b\\\\c\\n\\t\\r\\u0001\"");
  EXPECT_EQ(quoted(""), "\"\"");
}

TEST(Json, Utf8PassesAndOtherBytesAreReplaced) {
  EXPECT_EQ(quoted("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"), "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"");
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(quoted("\xFFz"), "\"" + bad + "z\"");
  EXPECT_EQ(quoted("\xC3"), "\"" + bad + "\"");                                // cut short
  EXPECT_EQ(quoted("\xC0\x80"), "\"" + bad + bad + "\"");                      // over-long
  EXPECT_EQ(quoted("\xED\xA0\x80"), "\"" + bad + bad + bad + "\"");            // surrogate
  EXPECT_EQ(quoted("\xF4\x90\x80\x80"), "\"" + bad + bad + bad + bad + "\"");  // beyond Unicode
}

}  // namespace
}  // namespace sirtaki
