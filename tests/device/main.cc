// usage: cuda_device_test [GoogleTest's arguments] [ELEMENTS]; ELEMENTS limits the size of arrays.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/device/machine.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::string missing = sirtaki::device::missing();
  if (!missing.empty()) {
    std::printf("%s; nothing was tested\n", missing.c_str());
    return 2;
  }
  if (argc > 1) {
    sirtaki::device::set_most_elements(std::strtoull(argv[1], nullptr, 10));
  }
  return RUN_ALL_TESTS();
}
