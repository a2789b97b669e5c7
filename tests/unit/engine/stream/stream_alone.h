// StreamAlone: a GradientStream of rank 0 of 2 whose collectives end when a test decides so.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/stream/gradient_stream.h"
#include "runtime/engine/stream/plan/stream_plan.h"

namespace sirtaki::engine::alone {

inline constexpr StreamId kStream(3);
inline constexpr std::int64_t kElements = 100;
inline constexpr int kTensors = 3;
inline constexpr scheduler::LayoutOptions kLayout{.fusion_bytes = 256, .partition_bytes = 4096, .alignment = 64};

class TaskQueue final : public Loop {
 public:
  TimePoint now() const override { return TimePoint(std::chrono::seconds(1)); }
  bool in_loop() const override { return true; }
  void post(Task task) override { tasks_.push_back(std::move(task)); }
  // Timers with a delay never fire.
  TimerId after(Duration delay, Task task) override {
    if (delay == Duration(0)) {
      post(std::move(task));
    }
    return TimerId(1);
  }
  void cancel(TimerId /*timer*/) override {}
  void run() {
    while (!tasks_.empty()) {
      Task task = std::move(tasks_.front());
      tasks_.pop_front();
      task();
    }
  }

 private:
  std::deque<Task> tasks_;
};

// Keeps started operations until the test ends them or the stream cancels them.
class HeldBack final : public net::Collectives {
 public:
  explicit HeldBack(Loop& loop) : loop_(loop) {}
  net::Caps caps() const override { return {}; }
  Rank rank() const override { return 0; }
  int size() const override { return 2; }
  void start(net::CollectiveArgs args, Done done) override { running_.emplace(args.tag.value, std::move(done)); }
  void abort(Status /*cause*/) override {}
  void cancel(net::TagGroup tags, Status cause) override {
    cancelled_.push_back(tags);
    for (auto it = running_.begin(); it != running_.end();) {
      const auto next = std::next(it);
      if (tags.contains(OpTag(it->first))) {
        end(it, cause);
      }
      it = next;
    }
  }
  void forget(const net::TagGroup& tags) override {
    std::erase_if(cancelled_, [&](const net::TagGroup& group) { return tags.contains(group); });
  }

  void succeed() {
    while (!running_.empty()) {
      end(running_.begin(), {});
    }
  }
  std::size_t running() const { return running_.size(); }
  bool runs(OpTag tag) const { return running_.contains(tag.value); }
  void fail(OpTag tag, const Status& status) { end(running_.find(tag.value), status); }
  bool cancelled(OpTag tag) const {
    return std::ranges::any_of(cancelled_, [&](const net::TagGroup& tags) { return tags.contains(tag); });
  }
  bool anything_cancelled() const { return !cancelled_.empty(); }

 private:
  using Running = std::map<std::uint64_t, Done>;
  void end(Running::iterator it, const Status& status) {
    loop_.post([done = std::move(it->second), status]() mutable { done(status); });
    running_.erase(it);
  }

  Loop& loop_;
  Running running_;
  std::vector<net::TagGroup> cancelled_;
};

class NoControl final : public ControlLink {
 public:
  void send(control::MemberMessage message) override {
    if (const auto* abort = std::get_if<control::StreamAbort>(&message)) {
      aborted = *abort;
    }
  }
  std::optional<control::StreamAbort> aborted;  // the last one
};

// A path that sends memory of its own, and counts the requests for zeros.
class CountsZeros final : public DensePath {
 public:
  CountsZeros(net::Collectives& net, int& asked) : net_(net), asked_(asked) {}
  void adopt(const scheduler::Plan& /*plan*/) override {}
  void discard_step() override {}
  Result<Packed> gather(const scheduler::Partition& /*partition*/, std::span<const TensorView> /*views*/) override {
    Packed packed;
    packed.in_place = memory_;
    return packed;
  }
  void start(net::CollectiveArgs args, Done done) override { net_.start(std::move(args), std::move(done)); }
  void cancel(const net::TagGroup& /*tags*/, const Status& /*cause*/) override {}
  Status scatter(const scheduler::Partition& /*partition*/, std::span<const TensorView> /*views*/,
                 BufferPool::Buffer /*packed*/) override {
    return {};
  }
  Status add_residual(const TensorView& /*gradient*/, const AddResidual& /*add*/) override { return {}; }
  Result<std::byte*> zeros(std::size_t bytes) override {
    ++asked_;
    memory_.assign(bytes, std::byte{0});
    return memory_.data();
  }
  void release_zeros() override {}
  bool on_host() const override { return true; }

 private:
  net::Collectives& net_;
  int& asked_;
  std::vector<std::byte> memory_;
};

class StreamAlone : public ::testing::Test {
 protected:
  explicit StreamAlone(const StreamOptions& options = {.layout = kLayout, .replan = false}) {
    StreamSpec spec;
    spec.name = "optimizer";
    spec.codec = "none";
    for (int i = 0; i < kTensors; ++i) {
      spec.tensors.push_back({"t" + std::to_string(i), {kElements}, {}, DType::kF32, {}});
      spec.order.push_back(i);
    }
    EXPECT_TRUE(read_compression(spec).ok());
    const auto plan = first_plan(spec, options.layout, CatalogFacts(2));
    stream_ = std::make_unique<GradientStream>(kStream, spec, StreamStart{*plan, *plan}, options, deps());
  }

  StreamDeps deps() {
    return {loop_,
            net_,
            control_,
            trace_,
            buffers_,
            stats_,
            nullptr,
            stats_.counter("steps"),
            stats_.counter("raw"),
            stats_.counter("lent"),
            stats_.counter("wire"),
            stats_.histogram("step"),
            stats_.histogram("exposed"),
            &stats_.histogram("gate")};
  }

  void submit(int tensors) {
    for (int i = 0; i < tensors; ++i) {
      std::vector<float>& values = memory_[static_cast<std::size_t>(i)];
      stream_->ready(i, {reinterpret_cast<std::byte*>(values.data()), kElements, DType::kF32, {}}, false, loop_.now());
    }
  }
  // Returns the status that the program receives for the step.
  Status wait() {
    Status received(Code::kTimeout, "nothing");
    stream_->wait([&](const Status& status) { received = status; });
    while (net_.running() > 0) {
      net_.succeed();
      loop_.run();
    }
    loop_.run();
    return received;
  }
  Status step() {
    submit(kTensors);
    stream_->finish(stream_->board()->finish(loop_.now()), loop_.now());
    return wait();
  }
  TaskQueue loop_;
  HeldBack net_{loop_};
  NoControl control_;
  Stats stats_;
  Timeline timeline_{0, "test"};
  Trace trace_{loop_, timeline_};
  BufferPool buffers_{1 << 20, stats_.gauge("buffers")};
  std::vector<std::vector<float>> memory_{kTensors, std::vector<float>(kElements, 1.0F)};
  std::unique_ptr<GradientStream> stream_;
};

}  // namespace sirtaki::engine::alone
