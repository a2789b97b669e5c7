#include "launcher/plan.h"

#include <gtest/gtest.h>

namespace sirtaki::launcher {
namespace {

// The plan ends where it looks for the Python package, which this program has not been installed with.
TEST(JobPlan, HostsOfHorovodMayHaveMoreSlotsThanAJobHasRanks) {
  RunOptions options;
  options.horovod = true;
  options.hosts = "localhost:65536,127.0.0.1:8";
  options.option_lines = "elastic.min = \"2\"\n";
  const Result<JobPlan> plan = make_plan(options, {});
  ASSERT_FALSE(plan);
  EXPECT_TRUE(plan.status().text().starts_with("--horovod: the Python package")) << plan.status().to_string();
}

}  // namespace
}  // namespace sirtaki::launcher
