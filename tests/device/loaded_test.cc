#include <gtest/gtest.h>

#include "tests/device/emulator.h"
#include "tests/device/machine.h"

namespace sirtaki::device {
namespace {

// Checks after all tests that the plug-in loads ahead exactly the kernels that the tests launched.
class AllAreLoaded final : public ::testing::Environment {
 public:
  void TearDown() override {
    EXPECT_GT(emulated::launched_kernels(), 0U);
    EXPECT_TRUE(kernels().load().ok());
    EXPECT_EQ(emulated::launched_but_not_loaded(), 0U) << "kernels are missing in load() of the plug-in";
    const auto& tests = *::testing::UnitTest::GetInstance();
    if (tests.test_to_run_count() == tests.total_test_count()) {
      EXPECT_EQ(emulated::loaded_but_not_launched(), 0U) << "kernels that no test launches";
    }
  }
};

const ::testing::Environment* const kAllAreLoaded = ::testing::AddGlobalTestEnvironment(new AllAreLoaded);

}  // namespace
}  // namespace sirtaki::device
