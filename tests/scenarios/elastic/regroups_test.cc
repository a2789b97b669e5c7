// An elastic job in one process, with real threads and sockets, that goes through many epochs: each one gives back all
// that it had.
#include <gtest/gtest.h>
#include <malloc.h>

#include <barrier>
#include <filesystem>
#include <fstream>

#include "tests/scenarios/elastic/support.h"
#include "tests/world/seeds.h"

namespace sirtaki::engine {
namespace {

using namespace std::chrono_literals;

std::ptrdiff_t entries_of(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

// Returns how many segments of shared memory this process maps.
std::ptrdiff_t segments() {
  std::ifstream maps("/proc/self/maps");
  std::ptrdiff_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("memfd:sirtaki") == std::string::npos ? 0 : 1;
  }
  return count;
}

// Resources of the system that this process holds.
struct Holdings {
  std::ptrdiff_t descriptors = 0;
  std::ptrdiff_t threads = 0;
  std::ptrdiff_t segments = 0;
  std::ptrdiff_t bytes = 0;  // bytes of the heap; 0 under a sanitizer, which finds leaks by itself

  static Holdings now() {
    const struct mallinfo2 heap = mallinfo2();
    return {entries_of("/proc/self/fd"), entries_of("/proc/self/task"), engine::segments(),
            world::kSanitized ? 0 : static_cast<std::ptrdiff_t>(heap.uordblks + heap.hblkhd)};
  }
  bool within(const Holdings& most) const {
    return descriptors <= most.descriptors && threads <= most.threads && segments <= most.segments;
  }
};

// The system shows a thread that has been joined for a moment.
Holdings await_holdings(const Holdings& most) {
  const TimePoint deadline = std::chrono::steady_clock::now() + 20s;
  Holdings present = Holdings::now();
  while (!present.within(most) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
    present = Holdings::now();
  }
  return present;
}

// One rank after the other gives an epoch up, and the others learn it in an operation.
TEST(RegroupsTest, ManyRegroupsLeaveNothingBehind) {
  constexpr int kRanks = 3;
  constexpr std::ptrdiff_t kMostBytes = 512;  // of a regroup
  constexpr std::uint64_t kRounds = world::last_seed(200);
  Hub hub(kRanks, 1);
  std::barrier together(kRanks);
  std::vector<Holdings> rounds;
  rounds.reserve(kRounds + 1);
  run(hub, [&](Process& process) {
    struct Leaving {
      std::barrier<>& barrier;
      ~Leaving() { barrier.arrive_and_drop(); }
    } const leaving{together};
    ASSERT_EQ(process.init().to_string(), "ok");
    for (std::uint64_t round = 0; round <= kRounds; ++round) {
      ASSERT_EQ(process.open_stream(round).to_string(), "ok");
      ASSERT_EQ(process.step().to_string(), "ok");
      together.arrive_and_wait();
      if (process.slot() == 0) {
        rounds.push_back(rounds.size() < 2 ? Holdings::now() : await_holdings(rounds[1]));
      }
      together.arrive_and_wait();
      if (process.slot() != static_cast<Rank>(round % kRanks)) {
        ASSERT_EQ(process.work().code(), Code::kRanksChanged);
      }
      ASSERT_EQ(process.regroup().to_string(), "ok");
    }
    expect_members(process, {0, 1, 2});
    process.shutdown();
  });
  ASSERT_EQ(rounds.size(), kRounds + 1);
  const Holdings& first = rounds[1];
  const Holdings& last = rounds.back();
  EXPECT_EQ(last.descriptors, first.descriptors);
  EXPECT_EQ(last.threads, first.threads);
  EXPECT_EQ(last.segments, first.segments);
  // Caches of threads that live on fill up in the first half.
  EXPECT_LT(last.bytes - rounds[kRounds / 2].bytes, kMostBytes * static_cast<std::ptrdiff_t>(kRounds / 2));
}

}  // namespace
}  // namespace sirtaki::engine
