#include "runtime/base/host_info.h"

#include <gtest/gtest.h>

namespace sirtaki {
namespace {

TEST(HostInfo, IsTheSameForTheSameMachine) {
  const HostInfo info = host_info();
  EXPECT_EQ(info.host_id, host_info().host_id);
  EXPECT_FALSE(info.hostname.empty());
  EXPECT_NE(info.host_id.find(":net"), std::string::npos);
  EXPECT_NE(info.host_id.find(":shm"), std::string::npos);
  EXPECT_EQ(info.host_id.find('?'), std::string::npos);
}

TEST(HostInfo, CanBeOverridden) {
  EXPECT_EQ(host_info("blade-3").host_id, "blade-3");
  EXPECT_EQ(host_info("blade-3").hostname, host_info().hostname);
}

}  // namespace
}  // namespace sirtaki
