#include "runtime/rendezvous/link/asio_loop.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <boost/asio/post.hpp>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/rendezvous/link/asio_context.h"

namespace sirtaki::rendezvous {
namespace {

using namespace std::chrono_literals;
constexpr auto kPatience = 20s;

// Sets a flag on its destruction.
struct Canary {
  explicit Canary(std::atomic<int>* count) : gone(count) {}
  Canary(Canary&& other) noexcept : gone(std::exchange(other.gone, nullptr)) {}
  Canary& operator=(Canary&&) = delete;
  ~Canary() {
    if (gone != nullptr) {
      gone->fetch_add(1);
    }
  }
  std::atomic<int>* gone;
};

TEST(AsioLoop, RunsTasksInTheOrderEachThreadPosted) {
  AsioLoop loop("test");
  constexpr int kThreads = 3;
  constexpr int kTasks = 2000;
  std::vector<std::vector<int>> seen(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&loop, &seen, t] {
      for (int i = 0; i < kTasks; ++i) {
        loop.post([&seen, t, i] { seen[static_cast<std::size_t>(t)].push_back(i); });
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  ASSERT_TRUE(loop.run_sync([] {}));
  for (const auto& numbers : seen) {
    ASSERT_EQ(numbers.size(), static_cast<std::size_t>(kTasks));
    for (int i = 0; i < kTasks; ++i) {
      ASSERT_EQ(numbers[static_cast<std::size_t>(i)], i);
    }
  }
}

TEST(AsioLoop, PostFromTheLoopRunsLaterNotInline) {
  AsioLoop loop("test");
  std::string order;
  std::promise<void> done;
  loop.post([&] {
    loop.post([&] {
      order += 'b';
      done.set_value();
    });
    order += 'a';
  });
  ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(order, "ab");
}

TEST(AsioLoop, KnowsItsOwnThreadAndNamesIt) {
  AsioLoop loop("a-very-long-thread-name");
  EXPECT_FALSE(loop.in_loop());
  loop.run_sync([&] {
    EXPECT_TRUE(loop.in_loop());
    char name[32] = {};
    pthread_getname_np(pthread_self(), name, sizeof(name));
    EXPECT_STREQ(name, "a-very-long-thr");
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    EXPECT_EQ(sigismember(&mask, SIGINT), 1);
    EXPECT_EQ(sigismember(&mask, SIGSEGV), 0);
  });
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  EXPECT_EQ(sigismember(&mask, SIGINT), 0);
}

TEST(AsioLoop, TimersFireByDeadlineThenByAge) {
  AsioLoop loop("test");
  std::string order;
  std::promise<void> done;
  loop.run_sync([&] {
    loop.after(20ms, [&] {
      order += 'd';
      done.set_value();
    });
    loop.after(5ms, [&] { order += 'c'; });
    loop.after(0ns, [&] { order += 'a'; });
    loop.after(0ns, [&] { order += 'b'; });
    EXPECT_EQ(order, "");
  });
  ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(order, "abcd");
}

TEST(AsioLoop, ACancelledTimerNeverFiresAndFreesItsTask) {
  AsioLoop loop("test");
  std::atomic<int> gone{0};
  std::promise<void> done;
  bool fired = false;
  loop.run_sync([&] {
    const TimerId timer = loop.after(1ms, [&fired, canary = Canary(&gone)] { fired = true; });
    loop.cancel(timer);
    EXPECT_EQ(gone, 1);
    loop.cancel(timer);
    loop.cancel(TimerId());
    loop.after(3ms, [&] { done.set_value(); });
  });
  ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_FALSE(fired);
}

TEST(AsioLoop, ATimerMayCancelAnotherThatIsDueAtTheSameTime) {
  AsioLoop loop("test");
  std::promise<void> done;
  bool fired = false;
  TimerId second;
  loop.run_sync([&] {
    loop.after(0ns, [&] { loop.cancel(second); });
    second = loop.after(0ns, [&] { fired = true; });
    loop.after(1ms, [&] { done.set_value(); });
  });
  ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_FALSE(fired);
}

TEST(AsioLoop, AnEndlessDelayNeverFires) {
  AsioLoop loop("test");
  bool fired = false;
  std::promise<void> done;
  loop.run_sync([&] {
    loop.after(Duration::max(), [&] { fired = true; });
    loop.after(1ms, [&] { done.set_value(); });
  });
  ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_FALSE(fired);
}

TEST(AsioLoop, AThrowingTaskIsReportedOnceAndTheLoopGoesOn) {
  std::vector<std::string> bugs;
  AsioLoop loop("test", [&](const Status& status) { bugs.push_back(status.to_string()); });
  loop.post([] { SRT_CHECK(1 == 2); });
  loop.post([] { throw std::runtime_error("second"); });
  boost::asio::post(io_context_of(loop), [] { throw 3; });
  loop.run_sync([&loop] { loop.after(0ns, [] { throw std::runtime_error("fourth"); }); });
  int ran = 0;
  loop.run_sync([&] { ++ran; });
  EXPECT_EQ(ran, 1);
  loop.run_sync([&] {
    ASSERT_EQ(bugs.size(), 1u);
    EXPECT_NE(bugs[0].find("internal error"), std::string::npos);
    EXPECT_NE(bugs[0].find("1 == 2"), std::string::npos);
  });
}

TEST(AsioLoop, StopDestroysQueuedTasksOnTheStoppingThread) {
  AsioLoop loop("test");
  std::atomic<int> gone{0};
  std::promise<void> busy;
  std::promise<void> release;
  bool ran = false;
  std::thread::id destroyer;
  struct Where {
    std::thread::id* where;
    ~Where() {
      if (where != nullptr) {
        *where = std::this_thread::get_id();
      }
    }
  };
  loop.post([&] {
    loop.after(1h, [canary = Canary(&gone)] {});
    busy.set_value();
    release.get_future().wait();
  });
  busy.get_future().wait();
  loop.post([&ran, canary = Canary(&gone), where = std::make_unique<Where>(&destroyer)] { ran = true; });
  std::thread opener([&] { release.set_value(); });
  // The queued task runs if the loop is released before stop() takes effect, so both outcomes are valid.
  loop.stop();
  opener.join();
  EXPECT_EQ(gone, 2);
  if (!ran) {
    EXPECT_EQ(destroyer, std::this_thread::get_id());
  }
  loop.post([canary = Canary(&gone)] {});
  EXPECT_EQ(gone, 3);
  EXPECT_FALSE(loop.run_sync([] {}));
  loop.stop();
}

TEST(AsioLoop, RunSyncEndsWhenTheLoopIsStoppedUnderIt) {
  AsioLoop loop("test");
  std::promise<void> busy;
  std::promise<void> release;
  loop.post([&] {
    busy.set_value();
    release.get_future().wait();
  });
  busy.get_future().wait();
  std::atomic<bool> returned{false};
  std::thread waiter([&] {
    loop.run_sync([] {});
    returned = true;
  });
  std::thread opener([&] { release.set_value(); });
  loop.stop();
  opener.join();
  waiter.join();
  EXPECT_TRUE(returned);
}

TEST(AsioLoop, AnIdleLoopDoesNotWake) {
  AsioLoop loop("test");
  loop.run_sync([] {});
  // Only the timer that ends these 50 ms may wake the loop.
  std::promise<void> done;
  std::uint64_t before = 0;
  loop.run_sync([&] {
    before = loop.wakeups();
    loop.after(50ms, [&] { done.set_value(); });
  });
  ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_LE(loop.wakeups() - before, 2u);
}

}  // namespace
}  // namespace sirtaki::rendezvous
