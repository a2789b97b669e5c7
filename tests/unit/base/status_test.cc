#include "runtime/base/status.h"

#include <gtest/gtest.h>

#include <set>

#include "runtime/base/check.h"
#include "runtime/base/task.h"

namespace sirtaki {
namespace {

TEST(Status, DefaultIsOkAndHasNoText) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), Code::kOk);
  EXPECT_EQ(status.text(), "");
  EXPECT_EQ(status.to_string(), "ok");
  EXPECT_EQ(status.blame().rank, -1);
}

TEST(Status, ErrorKeepsCodeTextAndBlame) {
  Status status(Code::kMismatch, "shapes differ", {2, "w"});
  const Status copy = status;
  status = Status();
  EXPECT_FALSE(copy.ok());
  EXPECT_EQ(copy.to_string(), "mismatch: shapes differ");
  EXPECT_EQ(copy.blame().rank, 2);
  EXPECT_EQ(copy.blame().tensor, "w");
}

TEST(Status, CodeOkNeverCarriesText) {
  EXPECT_TRUE(Status(Code::kOk, "ignored").ok());
  EXPECT_EQ(Status(Code::kOk, "ignored").text(), "");
}

TEST(Status, ContextGoesInFrontAndLeavesOkAlone) {
  const Status status = Status(Code::kTimeout, "no answer", {1, ""}).with_context("join");
  EXPECT_EQ(status.text(), "join: no answer");
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_EQ(status.blame().rank, 1);
  EXPECT_TRUE(Status().with_context("join").ok());
}

TEST(Status, FirstErrorWins) {
  Status status;
  status.update(Status());
  EXPECT_TRUE(status.ok());
  status.update(corrupt("first"));
  status.update(bug("second"));
  status.update(Status());
  EXPECT_EQ(status.text(), "first");
  EXPECT_EQ(status.code(), Code::kCorrupt);
}

TEST(Status, EveryCodeHasItsOwnName) {
  std::set<std::string_view> names;
  for (int code = 0; code <= static_cast<int>(Code::kRanksChanged); ++code) {
    EXPECT_TRUE(names.insert(code_name(static_cast<Code>(code))).second) << code;
  }
  EXPECT_FALSE(names.contains("unknown"));
  EXPECT_EQ(code_name(static_cast<Code>(200)), "unknown");
}

Result<int> half(int value) {
  if (value % 2 != 0) {
    return invalid_argument("odd");
  }
  return value / 2;
}

Result<int> quarter(int value) {
  SRT_ASSIGN(const int once, half(value));
  SRT_ASSIGN(const int twice, half(once));
  return twice;
}

Status check_both(int a, int b) {
  SRT_TRY(half(a).status());
  SRT_TRY(half(b).status());
  return {};
}

TEST(Result, HoldsAValueOrAStatus) {
  EXPECT_EQ(*quarter(8), 2);
  EXPECT_TRUE(quarter(8).status().ok());
  EXPECT_EQ(quarter(6).status().text(), "odd");
  EXPECT_FALSE(quarter(7));
}

TEST(Result, MovesValuesThatCannotBeCopied) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(5);
  const std::unique_ptr<int> taken = std::move(result).value();
  EXPECT_EQ(*taken, 5);
}

TEST(Result, TryReturnsTheFirstError) {
  EXPECT_TRUE(check_both(2, 4).ok());
  EXPECT_FALSE(check_both(2, 3).ok());
  EXPECT_FALSE(check_both(1, 2).ok());
}

TEST(Check, BrokenInvariantThrowsWithPlaceAndText) {
  const int n = 3;
  EXPECT_NO_THROW(SRT_CHECK(n == 3));
  try {
    SRT_CHECK(n == 4);
    FAIL();
  } catch (const BugError& error) {
    EXPECT_NE(std::string(error.what()).find("status_test.cc:"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("n == 4 does not hold"), std::string::npos);
  }
}

TEST(Task, HoldsCallablesThatCanOnlyBeMoved) {
  int seen = 0;
  Task empty;
  EXPECT_FALSE(empty);
  Task task = [&seen, value = std::make_unique<int>(7)] { seen = *value; };
  Task moved = std::move(task);
  ASSERT_TRUE(moved);
  moved();
  EXPECT_EQ(seen, 7);
}

}  // namespace
}  // namespace sirtaki
