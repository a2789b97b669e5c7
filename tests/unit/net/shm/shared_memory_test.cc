// SharedSegment and SharedMemory: segments that other ranks map, blocks in them, and the joint decision of all ranks.
#include "runtime/net/shm/shared_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "tests/conformance/collectives_worlds.h"

namespace sirtaki::net::testing {
namespace {

TEST(SharedSegment, IsOneMemoryForWhoeverOpensIt) {
  auto made = SharedSegment::create(kMiB);
  ASSERT_TRUE(made) << made.status().to_string();
  auto opened = SharedSegment::open(made->name());
  ASSERT_TRUE(opened) << opened.status().to_string();
  EXPECT_EQ(opened->size(), made->size());
  made->data()[opened->size() - 1] = std::byte{7};
  EXPECT_EQ(opened->data()[opened->size() - 1], std::byte{7});
}

TEST(SharedSegment, CannotBeCutUnderItsReaders) {
  const auto made = SharedSegment::create(kMiB);
  ASSERT_TRUE(made);
  EXPECT_NE(::ftruncate(made->name().fd, 0), 0);
  EXPECT_EQ(errno, EPERM);
}

TEST(SharedSegment, OpensNothingButWhatItWasToldOf) {
  auto made = SharedSegment::create(kMiB);
  ASSERT_TRUE(made);
  SharedSegment::Name other = made->name();
  other.token[3] ^= std::byte{1};
  EXPECT_EQ(SharedSegment::open(other).status().code(), Code::kUnavailable);
  other = made->name();
  other.bytes *= 2;
  EXPECT_EQ(SharedSegment::open(other).status().code(), Code::kUnavailable);
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe(ends), 0);
  other = made->name();
  other.fd = ends[0];
  EXPECT_EQ(SharedSegment::open(other).status().code(), Code::kUnavailable);
  ::close(ends[0]);
  ::close(ends[1]);
  const SharedSegment::Name closed = made->name();
  made->close_door();
  EXPECT_EQ(SharedSegment::open(closed).status().code(), Code::kUnavailable);
}

TEST(SharedSegment, AnUnsealedFileIsRefused) {
  auto made = SharedSegment::create(kMiB);
  ASSERT_TRUE(made);
  SharedSegment::Name other = made->name();
  other.fd = ::memfd_create("sirtaki", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_GE(other.fd, 0);
  ASSERT_EQ(::ftruncate(other.fd, static_cast<off_t>(other.bytes)), 0);
  EXPECT_EQ(SharedSegment::open(other).status().code(), Code::kUnavailable);
  ::close(other.fd);
}

// Limits the size of files until the end of the scope.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit lower{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &lower);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;
  ~FileLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST(SharedSegment, ALimitOfTheSystemIsAnErrorAndNoSignal) {
  const FileLimit limit(kMiB);
  EXPECT_EQ(SharedSegment::create(2 * kMiB).status().code(), Code::kExhausted);
  EXPECT_TRUE(SharedSegment::create(kMiB));
}

// Sends signals of a timer to this process until the end of the scope.
class Signals {
 public:
  explicit Signals(long every_us) {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    ::sigaction(SIGALRM, &action, &before_);
    set(every_us);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  ~Signals() {
    set(0);
    ::sigaction(SIGALRM, &before_, nullptr);
  }

 private:
  static void set(long every_us) {
    const itimerval timer{{0, every_us}, {0, every_us}};
    ::setitimer(ITIMER_REAL, &timer, nullptr);
  }
  struct sigaction before_ {};
};

TEST(SharedSegment, SignalsDoNotKeepItFromBeingMade) {
  const Signals signals(1000);
  // The creation of a segment takes many times the interval between two signals.
  for (int made = 0; made < 3; ++made) {
    const auto segment = SharedSegment::create(64 * kMiB);
    ASSERT_TRUE(segment) << segment.status().to_string();
  }
}

// Returns whether this process maps a segment.
bool maps_a_segment() {
  std::ifstream maps("/proc/self/maps");
  const std::string text{std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>()};
  return text.find("memfd:sirtaki") != std::string::npos;
}

TEST(SharedSegment, IsNotInProcessesThatAreForked) {
  auto made = SharedSegment::create(kMiB);
  ASSERT_TRUE(made);
  const auto opened = SharedSegment::open(made->name());
  ASSERT_TRUE(opened);
  EXPECT_TRUE(maps_a_segment());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::_exit(maps_a_segment() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Two ranks of one process, each with its own view of both segments.
struct TwoRanks {
  TwoRanks() {
    for (Rank rank = 0; rank < 2; ++rank) {
      made.push_back(std::move(*SharedSegment::create(2 * kMiB)));
    }
    for (Rank rank = 0; rank < 2; ++rank) {
      std::vector<SharedSegment> segments;
      for (const SharedSegment& segment : made) {
        segments.push_back(std::move(*SharedSegment::open(segment.name())));
      }
      ranks.push_back(std::make_shared<SharedMemory>(rank, std::move(segments), std::vector<Rank>{0, 1}));
    }
  }
  SharedMemory& operator[](std::size_t rank) { return *ranks[rank]; }
  std::vector<SharedSegment> made;
  std::vector<std::shared_ptr<SharedMemory>> ranks;
};

TEST(SharedMemory, ABlockIsReadByItsReadersAndThenFree) {
  TwoRanks ranks;
  const std::vector<std::byte> data(100'000, std::byte{42});
  const auto room = ranks[0].reserve(OpTag(1), data.size(), SharedMemory::reader(1));
  ASSERT_TRUE(room);
  std::copy(data.begin(), data.end(), room->memory.begin());
  EXPECT_EQ(ranks[0].pages_used(), 2U);
  {
    const auto view = ranks[1].view(OpTag(1), 0, room->page, data.size());
    ASSERT_TRUE(view) << view.status().to_string();
    EXPECT_TRUE(std::equal(data.begin(), data.end(), view->data().begin(), view->data().end()));
    EXPECT_EQ(ranks[0].pages_used(), 2U);
  }
  EXPECT_EQ(ranks[0].pages_used(), 0U);
}

TEST(SharedMemory, WithoutRoomNothingIsReserved) {
  TwoRanks ranks;
  std::size_t reserved = 0;
  while (ranks[0].reserve(OpTag(1), SharedMemory::kPageBytes, SharedMemory::reader(1))) {
    ++reserved;
  }
  EXPECT_EQ(reserved, ranks[0].pages());
  static_cast<void>(*ranks[1].view(OpTag(1), 0, 3, SharedMemory::kPageBytes));
  const auto room = ranks[0].reserve(OpTag(1), SharedMemory::kPageBytes, SharedMemory::reader(1));
  ASSERT_TRUE(room);
  EXPECT_EQ(room->page, 3U);
}

TEST(SharedMemory, LentMemoryIsReadInPlaceAndUsedAgainWhenAllHaveGivenItBack) {
  TwoRanks ranks;
  SharedBuffer lent = ranks[0].allocate_shared(100'000);
  ASSERT_TRUE(lent.keeps);
  EXPECT_EQ(lent.memory.size(), 100'000U);
  EXPECT_EQ(ranks[0].pages_used(), 2U);
  const auto page = ranks[0].publish_buffer(OpTag(1), lent.memory, SharedMemory::reader(1));
  ASSERT_TRUE(page);
  lent.memory[70'000] = std::byte{42};
  auto view = ranks[1].view(OpTag(1), 0, *page, lent.memory.size());
  ASSERT_TRUE(view) << view.status().to_string();
  EXPECT_EQ(view->data()[70'000], std::byte{42});
  EXPECT_FALSE(ranks[0].publish_buffer(OpTag(2), lent.memory, SharedMemory::reader(1))) << "it is still read";
  lent = {};
  EXPECT_EQ(ranks[0].pages_used(), 2U) << "it is still read";
  *view = SharedView();
  EXPECT_EQ(ranks[0].pages_used(), 0U);
  lent = ranks[0].allocate_shared(100'000);
  EXPECT_TRUE(ranks[0].publish_buffer(OpTag(2), lent.memory, SharedMemory::reader(1)));
}

TEST(SharedMemory, ShowsNothingButWhatItHasLent) {
  TwoRanks ranks;
  const SharedBuffer lent = ranks[0].allocate_shared(100'000);
  ASSERT_TRUE(lent.keeps);
  const std::vector<std::byte> other(100'000);
  EXPECT_FALSE(ranks[0].publish_buffer(OpTag(1), other, SharedMemory::reader(1)));
  EXPECT_FALSE(ranks[0].publish_buffer(OpTag(1), lent.memory.subspan(64), SharedMemory::reader(1)));
  const auto room = ranks[0].reserve(OpTag(1), 100'000, SharedMemory::reader(1));
  ASSERT_TRUE(room);
  EXPECT_FALSE(ranks[0].publish_buffer(OpTag(1), room->memory, SharedMemory::reader(1)));
  ranks[0].drop(OpTag(2));
  EXPECT_FALSE(ranks[0].publish_buffer(OpTag(2), lent.memory, SharedMemory::reader(1)))
      << "of which this rank wants no more";
}

TEST(SharedMemory, LendsHalfOfItAndOutlivesItsOwner) {
  TwoRanks ranks;
  std::vector<SharedBuffer> lent;
  while (true) {
    lent.push_back(ranks[0].allocate_shared(SharedMemory::kPageBytes));
    if (!lent.back().keeps) {
      break;
    }
  }
  EXPECT_EQ(lent.size() - 1, ranks[0].pages() / 2);
  lent.resize(1);
  EXPECT_EQ(ranks[0].pages_used(), 1U);
  ranks.ranks.clear();
  lent[0].memory[0] = std::byte{1};
}

TEST(SharedMemory, ADroppedTagIsFreedAndItsRankGetsNoRoomForIt) {
  TwoRanks ranks;
  ASSERT_TRUE(ranks[0].reserve(OpTag(1), 10, SharedMemory::reader(1)));
  ASSERT_TRUE(ranks[0].reserve(OpTag(2), 10, SharedMemory::reader(1)));
  ranks[1].drop(OpTag(1));
  EXPECT_EQ(ranks[0].pages_used(), 1U);
  EXPECT_FALSE(ranks[1].reserve(OpTag(1), 10, SharedMemory::reader(0)));
  EXPECT_TRUE(ranks[1].reserve(OpTag(2), 10, SharedMemory::reader(0)));
}

// A rank may drop any number of tags although the other ranks publish nothing.
TEST(SharedMemory, NoNumberOfDropsLeavesABlockBehind) {
  TwoRanks ranks;
  for (std::uint64_t tag = 0; tag < 20; ++tag) {
    ASSERT_TRUE(ranks[0].reserve(OpTag(tag), 10, SharedMemory::reader(1)));
  }
  ranks[1].drop(TagGroup(OpTag(0), ~std::uint64_t{15}));
  for (std::uint64_t tag = 16; tag < 20'000; ++tag) {
    ranks[1].drop(OpTag(tag));
  }
  EXPECT_EQ(ranks[0].pages_used(), 0U);
}

TEST(SharedMemory, AnOpenViewOutlivesADrop) {
  TwoRanks ranks;
  const auto room = ranks[0].reserve(OpTag(1), 10, SharedMemory::reader(1));
  ASSERT_TRUE(room);
  {
    const auto view = ranks[1].view(OpTag(1), 0, room->page, 10);
    ASSERT_TRUE(view);
    ranks[1].drop(OpTag(1));
    EXPECT_EQ(ranks[0].pages_used(), 1U);
  }
  EXPECT_EQ(ranks[0].pages_used(), 0U);
}

// The reader has dropped the tags before the block is published, so the block stays unread.
class SharedMemoryTooLate : public ::testing::Test {
 protected:
  void SetUp() override {
    ranks_[1].drop(kTags);
    ASSERT_TRUE(ranks_[0].reserve(OpTag(3), 10, SharedMemory::reader(1)));
    EXPECT_EQ(ranks_[0].pages_used(), 1U);
  }
  static constexpr TagGroup kTags{OpTag(0), ~std::uint64_t{7}};
  TwoRanks ranks_;
};

TEST_F(SharedMemoryTooLate, IsFreedWhenItsOwnerDropsTheTag) {
  ranks_[0].drop(kTags);
  static_cast<void>(ranks_[1].pages_used());
  EXPECT_EQ(ranks_[0].pages_used(), 0U);
}

TEST_F(SharedMemoryTooLate, IsFreedWhenItsOwnerHasNoRoom) {
  ranks_[1].give_back(0);
  EXPECT_EQ(ranks_[0].pages_used(), 0U);
}

TEST_F(SharedMemoryTooLate, IsFreedBeforeTheTagIsForgotten) {
  ranks_[1].forget(kTags);
  EXPECT_EQ(ranks_[0].pages_used(), 0U);
  EXPECT_TRUE(ranks_[1].reserve(OpTag(3), 10, SharedMemory::reader(0)));
}

TEST(SharedMemory, BlocksThatAreNotThereAreCorrupt) {
  TwoRanks ranks;
  const OpTag tag(1);
  ASSERT_TRUE(ranks[0].reserve(tag, 10, SharedMemory::reader(1)));
  const auto code = [&](OpTag of, std::uint32_t page, std::size_t bytes) {
    return ranks[1].view(of, 0, page, bytes).status().code();
  };
  EXPECT_EQ(code(tag, 0, 2 * kMiB), Code::kCorrupt);
  EXPECT_EQ(code(tag, 1, 10), Code::kCorrupt);
  EXPECT_EQ(code(tag, static_cast<std::uint32_t>(ranks[1].pages()), 1), Code::kCorrupt);
  EXPECT_EQ(code(tag, ~std::uint32_t{0}, 1), Code::kCorrupt);
  EXPECT_EQ(code(OpTag(2), 0, 10), Code::kCorrupt);
  const auto view = ranks[1].view(tag, 0, 0, 10);
  EXPECT_TRUE(view);
  EXPECT_EQ(code(tag, 0, 10), Code::kCorrupt) << "it is being read already";
}

// Connects the memory of all ranks of a world; rank 1 may use `bytes_of_rank_1`.
std::vector<SharedMemoryOutcome> connect(World& world, std::size_t bytes, std::size_t bytes_of_rank_1) {
  const auto size = static_cast<std::size_t>(world.size());
  std::vector<SharedMemoryOutcome> outcomes(size);
  int ended = 0;
  for (Rank rank = 0; rank < world.size(); ++rank) {
    world.on(rank, [&, rank] {
      SharedMemorySetup setup;
      setup.bytes = rank == 1 ? bytes_of_rank_1 : bytes;
      connect_shared_memory(world.link(rank), setup, [&, rank](Result<SharedMemoryOutcome> outcome) {
        EXPECT_TRUE(outcome) << outcome.status().to_string();
        outcomes[static_cast<std::size_t>(rank)] = std::move(*outcome);
        ++ended;
      });
    });
  }
  EXPECT_TRUE(world.wait([&] { return ended == world.size(); }));
  return outcomes;
}

TEST(SharedMemory, ARankThatCannotMakesAllDoWithoutAndAloneSaysWhy) {
  const auto world = make_local_world(3);
  const auto outcomes = connect(*world, 4 * kMiB, 0);
  for (const SharedMemoryOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.memory, nullptr);
  }
  EXPECT_EQ(outcomes[0].refused, "");
  EXPECT_NE(outcomes[1].refused, "");
  EXPECT_EQ(outcomes[2].refused, "");
}

TEST(SharedMemory, ASystemThatGivesLessMakesSmallerSegments) {
  const auto world = make_local_world(2);
  const FileLimit limit(3 * kMiB);
  const auto outcomes = connect(*world, 16 * kMiB, 16 * kMiB);
  for (const SharedMemoryOutcome& outcome : outcomes) {
    ASSERT_NE(outcome.memory, nullptr) << outcome.refused;
    EXPECT_LT(outcome.memory->pages(), 2 * kMiB / SharedMemory::kPageBytes);
  }
}

TEST(SharedMemory, ASilentRankIsAnErrorWithinTheDeadline) {
  const auto world = make_local_world(2);
  Status status;
  SharedMemorySetup setup;
  setup.bytes = 2 * kMiB;
  bool ended = false;
  connect_shared_memory(world->link(0), setup, [&](const Result<SharedMemoryOutcome>& outcome) {
    status = outcome.status();
    ended = true;
  });
  EXPECT_TRUE(world->wait([&] { return ended; }));
  EXPECT_EQ(status.code(), Code::kTimeout) << status.to_string();
}

}  // namespace
}  // namespace sirtaki::net::testing
