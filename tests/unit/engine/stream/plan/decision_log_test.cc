#include "runtime/engine/stream/plan/decision_log.h"

#include <gtest/gtest.h>

namespace sirtaki::engine {
namespace {

using scheduler::Reason;

std::string text_of(const DecisionLog& log) {
  JsonWriter json;
  log.write(json);
  return std::move(json).take();
}

std::size_t entries_of(const DecisionLog& log) {
  const std::string text = text_of(log);
  std::size_t count = 0;
  for (std::size_t at = text.find("\"step\""); at != std::string::npos; at = text.find("\"step\"", at + 1)) {
    ++count;
  }
  return count;
}

TEST(DecisionLog, ListsDecisionsWithTheirInputs) {
  DecisionLog log;
  EXPECT_EQ(text_of(log), "[]");
  log.add({.step = 8,
           .reason = Reason::kCodecs,
           .plan_version = 1,
           .next_version = 2,
           .measured_us = 40,
           .current_us = 30,
           .predicted_us = 20,
           .bound_us = 10},
          "auto: int8");
  EXPECT_EQ(text_of(log),
            R"([{"step":8,"reason":")" + std::string(reason_name(Reason::kCodecs)) +
                R"(","plan":1,"next_plan":2,"measured_us":40,"current_us":30,"predicted_us":20,"bound_us":10,)" +
                R"("policy":"auto: int8"}])");
}

TEST(DecisionLog, KeepsChangesAndTheLastDecision) {
  DecisionLog log;
  log.add({.step = 3, .plan_version = 1, .next_version = 2}, "");
  for (std::uint64_t step = 6; step < 600; step += 6) {
    log.add({.step = step, .plan_version = 2, .next_version = 2}, "");
  }
  EXPECT_EQ(entries_of(log), 2U);
  EXPECT_NE(text_of(log).find("\"step\":3,"), std::string::npos);
  EXPECT_NE(text_of(log).find("\"step\":594,"), std::string::npos);
}

TEST(DecisionLog, DropsTheOldest) {
  DecisionLog log;
  for (std::uint64_t step = 1; step <= 3 * DecisionLog::kMost; ++step) {
    log.add({.step = step, .plan_version = step, .next_version = step + 1}, "");
  }
  EXPECT_EQ(entries_of(log), DecisionLog::kMost);
  EXPECT_EQ(text_of(log).find("\"step\":1,"), std::string::npos);
}

}  // namespace
}  // namespace sirtaki::engine
