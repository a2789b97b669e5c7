// An elastic job in one process, with real threads and sockets: its hub, its processes and their programs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/config/config_load.h"
#include "runtime/engine/epoch/control_line.h"
#include "runtime/engine/session/session.h"
#include "runtime/hub/coordinator_server.h"

namespace sirtaki::engine {

// The coordinator of a job, with its events.
class Hub {
 public:
  Hub(int size, int min, const std::string& silence = "30s", int max = 0) : all(size), size_(size) {
    ConfigSources sources;
    sources.program = "elastic.min = " + std::to_string(min) + "\nelastic.silence = \"" + silence + "\"\n";
    sources.program += "elastic.max = " + std::to_string(max) + "\n";
    config = load_config(sources).value();
    sources.program += "control.connect_timeout = \"1s\"\n";
    impatient = load_config(sources).value();
    secret = rendezvous::Secret::generate().value();
    hub::CoordinatorServerOptions options = hub::coordinator_options(*config);
    options.server.size = size;
    options.server.secret = secret;
    hub::CoordinatorServerEvents events;
    events.on_survived = [this](const hub::Survived& survived) {
      note("slot " + std::to_string(survived.slot) + " survived by " + std::to_string(survived.remaining) +
           " as epoch " + std::to_string(survived.next.value));
    };
    events.on_new_rank = [this](const hub::NewRank& rank) {
      const std::string slot = "slot " + std::to_string(rank.slot);
      if (rank.stage == hub::NewRank::Stage::kJoined) {
        note(slot + " joined " + std::to_string(rank.size) + " as epoch " + std::to_string(rank.epoch.value));
      }
      static constexpr const char* kStages[] = {" waits", " joins", " has the state", " is lost: "};
      note_stage(slot + kStages[static_cast<int>(rank.stage)] +
                 (rank.stage == hub::NewRank::Stage::kLost ? rank.text : ""));
    };
    events.on_over = [this](const Status& why) { note("over: " + why.to_string()); };
    server_ = hub::CoordinatorServer::start(std::move(options), std::move(events)).value();
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(server_->port()); }
  int size() const { return size_; }
  void give_up(Rank slot) { server_->give_up(slot); }
  void set_host(Rank slot, const std::string& host) { server_->set_host(slot, host); }
  void report_exit(Rank slot, const std::string& what) { server_->report_exit(slot, what); }
  // Waits until as many events have come and returns them sorted: some have no order.
  std::vector<std::string> events(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return events_.size() >= count; });
    std::vector<std::string> sorted = events_;
    std::ranges::sort(sorted);
    return sorted;
  }
  // Waits until new ranks have come so far.
  std::vector<std::string> stages(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return stages_.size() >= count; });
    return stages_;
  }

  std::shared_ptr<const Config> config;
  std::shared_ptr<const Config> impatient;  // options of a process that gives up early
  rendezvous::Secret secret;
  std::latch all;  // for a program that waits for the other ranks, which have what they need of it then

 private:
  void note(std::string event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_all();
  }
  void note_stage(std::string stage) {
    const std::lock_guard lock(mutex_);
    stages_.push_back(std::move(stage));
    changed_.notify_all();
  }

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> events_;
  std::vector<std::string> stages_;  // stages of new ranks, in their order
  std::unique_ptr<hub::CoordinatorServer> server_;
};

// A process of the job, as DefaultSession has it.
class Process {
 public:
  Process(Hub& hub, Rank slot) : hub_(hub), slot_(slot) {}

  // Connects and joins the first epoch.
  Status init() {
    SRT_TRY(connect());
    return open();
  }
  Status connect() {
    SRT_ASSIGN(line_, ControlLine::connect(*hub_.config, hub_.address(), hub_.secret, {}));
    return {};
  }
  Status regroup() {
    session_->drop();
    return open();
  }
  Status open() {
    while (true) {
      JobSpec job{slot_, hub_.size(), hub_.address(), hub_.secret};
      const bool unable = unable_ > 0 && unable_-- > 0;
      if (unable) {
        job.secret = rendezvous::Secret::generate().value();
      }
      job.line = line_;
      if (equip) {
        equip(job);
      }
      auto opened = Session::open(unable ? hub_.impatient : hub_.config, std::move(job), {});
      if (opened || opened.status().code() != Code::kRanksChanged) {
        session_ = opened ? *std::move(opened) : nullptr;
        return opened.status();
      }
    }
  }
  // Makes so many attempts to open a session fail, because this process cannot connect to the others.
  void be_unable(int attempts) { unable_ = attempts; }
  // Ends the epoch with the others for a change.
  Status regroup_at(std::uint32_t change) {
    line_->agree(change);
    return regroup();
  }
  // Waits until the hub wants a change.
  std::uint32_t await_change() {
    const TimePoint deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (line_->wanted() == 0 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    return line_->wanted();
  }
  // Ends like a process that is killed: its sockets close.
  void die() {
    if (session_) {
      session_->drop();
      session_.reset();
    }
    line_.reset();
  }
  void shutdown() { session_->close(); }

  // Sums a number that tells which processes take part.
  Status sum(float& total, Device device = {}, void* cuda_stream = nullptr, std::vector<Rank> ranks = {}) {
    float value = static_cast<float>(1 << slot_);
    OpSpec spec;
    spec.name = device.type == DeviceType::kCpu ? "members" : "members on a GPU";
    spec.ranks = std::move(ranks);
    spec.reduce_op = ReduceOp::kSum;
    spec.input = {reinterpret_cast<std::byte*>(&value), 1, DType::kF32, device};
    spec.output = {reinterpret_cast<std::byte*>(&total), 1, DType::kF32, device};
    spec.dims = {1};
    spec.cuda_stream = cuda_stream;
    std::vector<OpSpec> ops;
    ops.push_back(std::move(spec));
    SRT_ASSIGN(const auto ids, session_->submit(std::move(ops)));
    Status status = *session_->wait(ids.front(), Duration(-1));
    session_->release(ids.front());
    return status;
  }
  // Opens a stream of one tensor, whose gradient tells which processes take part.
  Status open_stream(std::uint64_t first_step) {
    StreamSpec spec;
    spec.name = "gradients";
    spec.tensors.push_back({"weight", {1}, {}, DType::kF32, {}});
    spec.reduce_op = ReduceOp::kSum;
    spec.first_step = first_step;
    SRT_ASSIGN(stream_, session_->open_stream(std::move(spec), std::chrono::seconds(20)));
    return {};
  }
  void submit() {
    gradient_ = static_cast<float>(1 << slot_);
    const StreamHandle stream = session_->stream(stream_);
    EXPECT_TRUE(stream.ready(0, {reinterpret_cast<std::byte*>(&gradient_), 1, DType::kF32, {}}, false).ok());
    EXPECT_TRUE(stream.finish().ok());
  }
  Status step() {
    submit();
    return *session_->stream(stream_).wait(Duration(-1));
  }
  float gradient() const { return gradient_; }
  // After regroup(): returns whether the step in progress counts.
  bool committed() { return line_->take_committed().contains(stream_); }
  // Works until the epoch has ended and returns its error.
  Status work() {
    while (true) {
      float total = 0;
      if (Status status = sum(total); !status.ok()) {
        return status;
      }
    }
  }

  std::function<void(JobSpec&)> equip;  // adds the GPU of this process; may be empty
  Session& session() { return *session_; }
  ControlLine& line() { return *line_; }
  Rank slot() const { return slot_; }

 private:
  Hub& hub_;
  const Rank slot_;
  std::shared_ptr<ControlLine> line_;
  int unable_ = 0;
  float gradient_ = 0;
  StreamId stream_;
  std::unique_ptr<Session> session_;
};

// Runs a program on each rank, on a thread of its own.
inline void run(Hub& hub, const std::function<void(Process&)>& program) {
  std::vector<std::jthread> threads;
  for (Rank slot = 0; slot < hub.size(); ++slot) {
    threads.emplace_back([&, slot] {
      Process process(hub, slot);
      program(process);
    });
  }
}

inline bool contains(const Status& status, const std::string& part) {
  return std::string(status.text()).find(part) != std::string::npos;
}

// Expects that the present epoch consists of these slots, in this order.
inline void expect_members(Process& process, const std::vector<Rank>& slots) {
  float expected = 0;
  for (const Rank slot : slots) {
    expected += static_cast<float>(1 << slot);
  }
  ASSERT_EQ(process.session().membership().size(), static_cast<int>(slots.size()));
  EXPECT_EQ(slots[static_cast<std::size_t>(process.session().rank())], process.slot());
  float total = 0;
  const Status status = process.sum(total);
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(total, expected);
}

}  // namespace sirtaki::engine
