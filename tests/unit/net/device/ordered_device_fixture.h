// OrderedDeviceTest: the OrderedDevice of each rank of a job on one loop, over fake collectives that record their
// launches. Used by ordered_device_test.cc and ordered_sets_fixture.h.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/net/device/ordered_device.h"
#include "runtime/net/link/inproc_link.h"
#include "tests/conformance/collectives_worlds.h"

namespace sirtaki::net {

using testing::ManualLoop;

class Recorder final : public SetCollectives {
 public:
  struct Launch {
    OpTag tag;
    Done done;
  };

  Recorder(Rank rank, int size) : rank_(rank), size_(size) {}
  Caps caps() const override { return {}; }
  Rank rank() const override { return rank_; }
  int size() const override { return size_; }
  void start_work(CollectiveArgs args, DeviceWork work, Done done) override {
    if (groups.empty() || !open) {
      groups.emplace_back();
    }
    groups.back().push_back(args.tag.value);
    open = work.more;
    tags.push_back(args.tag);
    flying.push_back({args.tag, std::move(done)});
  }
  Status check_work(const CollectiveArgs& args, const DeviceWork& /*work*/) const override { return check(args); }
  void connect_set(LaunchSet set, Done done) override {
    tags.emplace_back(kConnectTag + set);
    flying.push_back({tags.back(), std::move(done)});
  }
  void drop_set(LaunchSet set, const Status& cause) override { dropped.emplace(set, cause); }
  void cancel(TagGroup, Status) override { ADD_FAILURE() << "NCCL cannot cancel one operation"; }
  void abort(Status cause) override {
    aborted.update(cause);
    for (Launch& launch : std::exchange(flying, {})) {
      launch.done(cause);
    }
  }

  // In order of launches; the connection of a set is one, too.
  static constexpr std::uint64_t kConnectTag = 900;
  std::vector<OpTag> tags;
  std::map<LaunchSet, Status> dropped;
  std::vector<std::vector<std::uint64_t>> groups;
  bool open = false;  // the last group lacks its end, so NCCL launches none of it
  std::vector<Launch> flying;
  Status aborted;

 private:
  const Rank rank_;
  const int size_;
};

// A link whose sends fail once `cut` is set, whereas messages that have arrived go on to their receivers.
class OneWayLink final : public PointToPoint {
 public:
  explicit OneWayLink(PointToPoint& link) : link_(link) {}
  Rank rank() const override { return link_.rank(); }
  int size() const override { return link_.size(); }
  Loop& loop() override { return link_.loop(); }
  void send(const Envelope& envelope, ConstBytes data, Done done) override {
    if (cut.ok()) {
      link_.send(envelope, data, std::move(done));
    } else {
      loop().post([done = std::move(done), why = cut]() mutable { done(why); });
    }
  }
  void recv(const Envelope& envelope, Bytes out, Done done) override { link_.recv(envelope, out, std::move(done)); }
  void cancel(TagGroup tags, Status cause) override { link_.cancel(tags, std::move(cause)); }
  void fail(Status cause) override { link_.fail(std::move(cause)); }

  Status cut;

 private:
  PointToPoint& link_;
};

class OrderedDeviceTest : public ::testing::Test {
 protected:
  struct Ended {
    OpTag tag;
    Status status;
  };
  struct Member {
    std::unique_ptr<InprocEndpoint> endpoint;
    std::unique_ptr<OneWayLink> link;
    Recorder* inner = nullptr;
    std::unique_ptr<LaunchServer> server;  // on rank 0
    std::unique_ptr<OrderedDevice> ordered;
    std::vector<Ended> ended;
    std::vector<Status> broken;
  };

  void open(int size, LocalOptions options = {}) {
    group_ = InprocGroup::create(size, std::move(options));
    members_.resize(static_cast<std::size_t>(size));
    constexpr OpTag kTag(1000000);
    for (Rank rank = 0; rank < size; ++rank) {
      Member& member = at(rank);
      member.endpoint = group_->endpoint(rank, loop_);
      member.link = std::make_unique<OneWayLink>(*member.endpoint);
      auto inner = std::make_unique<Recorder>(rank, size);
      member.inner = inner.get();
      if (rank == 0) {
        member.server =
            std::make_unique<LaunchServer>(*member.link, LaunchServerOptions{kTag, 100},
                                           [&member](const Status& status) { member.broken.push_back(status); });
      }
      member.ordered =
          std::make_unique<OrderedDevice>(*member.link, std::move(inner), member.server.get(), kTag,
                                          [&member](const Status& status) { member.broken.push_back(status); });
    }
  }
  ~OrderedDeviceTest() override {
    for (Member& member : members_) {
      member.ordered.reset();
      member.server.reset();
      member.link.reset();
      member.endpoint.reset();
    }
    run();
  }

  Member& at(Rank rank) { return members_[static_cast<std::size_t>(rank)]; }
  void start(Rank rank, std::uint64_t tag, std::int32_t priority = 1) {
    CollectiveArgs args;
    args.kind = OpKind::kBarrier;
    args.tag = OpTag(tag);
    args.priority = priority;
    Member& member = at(rank);
    member.ordered->start(std::move(args), [&member, tag](Status status) {
      member.ended.push_back({OpTag(tag), std::move(status)});
    });
  }
  // Starts an operation of so many bytes on all ranks.
  void start_on_all(std::uint64_t tag, std::size_t bytes, bool on_host = false) {
    for (Member& member : members_) {
      CollectiveArgs args;
      args.tag = OpTag(tag);
      args.in = args.out = Bytes(memory_).first(bytes);
      DeviceWork work;
      work.on_host = on_host;
      member.ordered->start_work(std::move(args), std::move(work), [&member, tag](Status status) {
        member.ended.push_back({OpTag(tag), std::move(status)});
      });
    }
  }
  void cancel(Rank rank, std::uint64_t tag) {
    at(rank).ordered->cancel(OpTag(tag), {Code::kAborted, "no more of " + std::to_string(tag)});
  }
  // Completes every launched operation.
  void finish_all() {
    for (Member& member : members_) {
      for (Recorder::Launch& launch : std::exchange(member.inner->flying, {})) {
        launch.done({});
      }
    }
  }
  void run() {
    static_cast<void>(loop_.run([] { return false; }));
  }
  void run_for(Duration duration) {
    const TimePoint until = loop_.now() + duration;
    loop_.after(duration, [] {});
    ASSERT_TRUE(loop_.run([&] { return loop_.now() >= until; }));
  }

  ManualLoop loop_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(1024);
  std::shared_ptr<InprocGroup> group_;
  std::vector<Member> members_;
};

}  // namespace sirtaki::net
