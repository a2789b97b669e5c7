#include "tests/device/emulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/device.cuh"

namespace sirtaki::emulated {
namespace {

TEST(Emulator, LanesSeeEachOther) {
  for (unsigned order = 0; order < 3; ++order) {
    set_order(order);
    std::vector<unsigned> sums(128);
    std::vector<unsigned> ballots(128);
    std::vector<float> shifted(128);
    run(2, 64, [&] {
      const unsigned i = place().block.x * 64 + place().thread.x;
      sums[i] = __reduce_add_sync(~0U, i);
      ballots[i] = __ballot_sync(~0U, i % 3 == 0);
      shifted[i] = __shfl_down_sync(~0U, static_cast<float>(i), 1);
    });
    for (unsigned i = 0; i < 128; ++i) {
      const unsigned first = i / 32 * 32;
      EXPECT_EQ(sums[i], 32 * first + 31 * 16);
      EXPECT_EQ(ballots[i] >> i % 32 & 1U, i % 3 == 0 ? 1U : 0U);
      EXPECT_EQ(shifted[i], static_cast<float>(i % 32 == 31 ? i : i + 1));
    }
  }
}

// The kernels use exchanges on devices without instructions for reductions.
TEST(Emulator, ExchangesBetweenLanesGiveTheReductionsOfTheirInstructions) {
  run(1, 64, [&] {
    const std::uint32_t value = place().thread.x * 2654435761U;
    using kernels::cuda::over_lanes;
    EXPECT_EQ(over_lanes(value, [](auto a, auto b) { return a + b; }), kernels::cuda::warp_sum(value));
    EXPECT_EQ(over_lanes(value, [](auto a, auto b) { return std::min(a, b); }), kernels::cuda::warp_min(value));
    EXPECT_EQ(over_lanes(value, [](auto a, auto b) { return std::max(a, b); }), kernels::cuda::warp_max(value));
  });
}

TEST(Emulator, QuotientsAreExact) {
  std::mt19937_64 random(5);
  for (std::int32_t divisor = 1; divisor <= 65536; divisor += divisor < 300 || divisor > 65500 ? 1 : 997) {
    const std::uint64_t inverse = kernels::cuda::inverse_of(divisor);
    const std::int64_t last = kernels::cuda::kMostDivided - 1;
    const std::int64_t whole = last / divisor * divisor;
    for (const std::int64_t number :
         {std::int64_t{0}, last, whole, whole - 1, static_cast<std::int64_t>(random() % (std::uint64_t{1} << 48))}) {
      ASSERT_EQ(kernels::cuda::quotient(number, inverse), number / divisor) << number << " / " << divisor;
    }
  }
}

TEST(Emulator, BarriersHoldABlock) {
  for (unsigned order = 0; order < 3; ++order) {
    set_order(order);
    std::vector<unsigned> before(256);
    std::vector<unsigned> seen(256);
    run(1, 256, [&] {
      const unsigned t = place().thread.x;
      for (unsigned turn = 1; turn < 4; ++turn) {
        before[t] = turn * t;
        __syncthreads();
        seen[t] += before[255 - t];
        __syncthreads();
      }
    });
    for (unsigned t = 0; t < 256; ++t) {
      EXPECT_EQ(seen[t], 6 * (255 - t));
    }
  }
}

TEST(Emulator, ShowsAMissingBarrier) {
  std::vector<unsigned> wrong(3);
  for (unsigned order = 0; order < 3; ++order) {
    set_order(order);
    std::vector<unsigned> words(64);
    run(1, 64, [&] {
      const unsigned t = place().thread.x;
      words[t] = t + 1;
      wrong[order] += words[(t + 32) % 64] == 0 ? 1 : 0;
    });
  }
  EXPECT_GT(wrong[0], 0U);
  EXPECT_GT(wrong[1], 0U);
}

TEST(EmulatorDeathTest, RefusesLanesThatMeetInDifferentFunctions) {
  EXPECT_DEATH(run(1, 32, [] { place().thread.x < 7 ? __syncwarp() : static_cast<void>(__ballot_sync(~0U, true)); }),
               "different functions");
}

TEST(EmulatorDeathTest, RefusesAMaskThatLeavesOutALiveLane) {
  EXPECT_DEATH(run(1, 32, [] { static_cast<void>(__ballot_sync(0x7FFFFFFFU, true)); }), "the mask leaves out lanes");
  // Two halves of a warp that mean to vote apart.
  EXPECT_DEATH(
      run(1, 32, [] { static_cast<void>(__ballot_sync(place().thread.x < 16 ? 0xFFFFU : 0xFFFF0000U, true)); }),
      "the mask leaves out lanes");
}

TEST(EmulatorDeathTest, RefusesToReadFromALaneThatHasEnded) {
  EXPECT_DEATH(run(1, 32,
                   [] {
                     if (place().thread.x < 20) {
                       static_cast<void>(__shfl_down_sync(~0U, 1, 1));
                     }
                   }),
               "reads from a lane that has ended");
}

TEST(EmulatorDeathTest, RefusesABarrierThatSomeNeverReach) {
  EXPECT_DEATH(run(1, 64,
                   [] {
                     if (place().thread.x < 32) {
                       __syncthreads();
                     } else if (place().thread.x < 40) {
                       __syncwarp();
                     } else {
                       __syncthreads();
                     }
                   }),
               "all threads wait");
}

// Kernels are compiled with the same options as this file.
TEST(EmulatorDeathTest, RefusesMisalignedAccess) {
  alignas(16) float numbers[8] = {};
  float four[4];
  const auto load = [&](int at) { kernels::cuda::load_four(numbers + at, 4, true, four); };
  load(4);
  EXPECT_DEATH(load(1), "misaligned address");
}

TEST(Emulator, GoesOnWithoutThreadsThatAreDone) {
  unsigned sum = 0;
  run(1, 64, [&] {
    if (place().thread.x >= 40) {
      return;
    }
    __syncthreads();
    if (place().thread.x >= 32) {
      sum = __reduce_add_sync(~0U, 1);
    }
  });
  EXPECT_EQ(sum, 8U);
}

}  // namespace
}  // namespace sirtaki::emulated
