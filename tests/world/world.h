// World: an environment for scenarios. A scenario is one coroutine per rank; `co_await` suspends it in the simulator
// and blocks its thread in ThreadWorld, so that the same text runs in both.
#pragma once

#include <coroutine>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/engine/common/requests.h"

namespace sirtaki::world {

// Awaitable of a scenario: a value that comes later (simulator) or a call that blocks (threads).
template <class T>
class Await {
 public:
  struct Cell {
    std::optional<T> value;
    std::coroutine_handle<> waiter;
    std::function<void()> on_wait;    // called when the rank begins to wait
    std::function<void()> on_resume;  // called when it continues
  };

  explicit Await(std::shared_ptr<Cell> cell) : cell_(std::move(cell)) {}
  explicit Await(std::function<T()> block) : block_(std::move(block)) {}

  bool await_ready() {
    if (block_) {
      cell_ = std::make_shared<Cell>();
      cell_->value.emplace(block_());
    }
    return cell_->value.has_value();
  }
  void await_suspend(std::coroutine_handle<> handle) {
    cell_->waiter = handle;
    if (cell_->on_wait) {
      cell_->on_wait();
    }
  }
  T await_resume() {
    if (cell_->on_resume) {
      cell_->on_resume();
    }
    return std::move(*cell_->value);
  }

 private:
  std::shared_ptr<Cell> cell_;
  std::function<T()> block_;
};

// Coroutine of a scenario. It starts when run; the world gets an exception that escapes it.
class Scenario {
 public:
  struct promise_type {
    std::exception_ptr error;
    Scenario get_return_object() { return Scenario(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }
  };
  explicit Scenario(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  Scenario(Scenario&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Scenario& operator=(Scenario&&) = delete;
  ~Scenario() {
    if (handle_) {
      handle_.destroy();
    }
  }

  void resume() { handle_.resume(); }
  bool done() const { return handle_.done(); }
  void rethrow() const {
    if (handle_.promise().error) {
      std::rethrow_exception(handle_.promise().error);
    }
  }

 private:
  std::coroutine_handle<promise_type> handle_;
};

// Operations of one rank: those of the C ABI, awaitable.
class RankApi {
 public:
  virtual ~RankApi() = default;
  virtual Rank rank() const = 0;
  virtual int size() const = 0;
  virtual std::mt19937_64& random() = 0;  // generator of this rank, seeded

  virtual std::uint64_t submit(engine::OpSpec spec) = 0;
  // Submits tensors in host memory, even in a world whose tensors are on devices.
  virtual std::uint64_t submit_on_host(engine::OpSpec spec) { return submit(std::move(spec)); }
  virtual Await<Status> wait(std::uint64_t request) = 0;
  virtual const engine::OpResult& result(std::uint64_t request) = 0;
  Await<Status> run(engine::OpSpec spec) { return wait(submit(std::move(spec))); }

  virtual Await<Result<StreamId>> open_stream(engine::StreamSpec spec) = 0;
  virtual void ready(StreamId stream, int index, TensorView tensor, bool absent) = 0;
  virtual void finish(StreamId stream) = 0;
  virtual Await<Status> wait_stream(StreamId stream) = 0;
  virtual Await<Status> wait_tensors(StreamId stream, std::vector<int> tensors) = 0;
  virtual Await<Status> abort_stream(StreamId stream, std::string why) = 0;
  virtual Await<Status> close_stream(StreamId stream) = 0;
  virtual std::vector<std::uint8_t> used(StreamId stream) = 0;
  virtual Status residual(StreamId stream, int index, std::span<float> out) = 0;
  virtual Status set_residual(StreamId stream, int index, std::span<const float> in) = 0;
  virtual void report_loss(StreamId stream, double loss) = 0;

  // Announces that this rank has no more data; returns the rank that joined last.
  virtual Await<Result<Rank>> join() = 0;

  // Stands for computation: passes virtual time in the simulator, does nothing elsewhere.
  virtual Await<Status> compute(Duration duration) = 0;
  // Leaves the job in order.
  virtual Await<Status> leave() = 0;
  // Kills the process: without a trace in the simulator, by cutting its connections in ThreadWorld.
  virtual void die() = 0;
};

using ScenarioFn = std::function<Scenario(RankApi&)>;

}  // namespace sirtaki::world
