#include <gtest/gtest.h>

#include "tests/device/emulator.h"
#include "tests/device/machine.h"

namespace sirtaki::device {
namespace {

// After all tests, which launch every kernel.
class AllAreLoaded final : public ::testing::Environment {
 public:
  void TearDown() override {
    EXPECT_GT(emulated::launched_kernels(), 0U);
    EXPECT_TRUE(kernels().load().ok());
    EXPECT_EQ(emulated::launched_but_not_loaded(), 0U) << "kernels are missing in load() of the plug-in";
  }
};

const ::testing::Environment* const kAllAreLoaded = ::testing::AddGlobalTestEnvironment(new AllAreLoaded);

}  // namespace
}  // namespace sirtaki::device
