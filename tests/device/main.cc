#include <gtest/gtest.h>

#include <cstdio>

#include "tests/device/machine.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::string missing = sirtaki::device::missing();
  if (!missing.empty()) {
    std::printf("%s; nothing was tested\n", missing.c_str());
    return 2;
  }
  return RUN_ALL_TESTS();
}
