#include <algorithm>
#include <utility>

#include "runtime/net/batch/batch_exchange.h"
#include "runtime/net/collectives/algorithms.h"
#include "runtime/net/collectives/combine.h"

namespace sirtaki::net {
namespace {

// Every rank shows all its data to all ranks in a batch and reduces everything.
class BatchedAllreduce final : public Operation, public BatchMember {
 public:
  using Operation::Operation;

  bool batched() const override { return true; }
  OpTag tag() const override { return args().tag; }
  std::int32_t priority() const override { return args().priority; }
  Expectation expectation() const override { return Operation::expectation(); }
  ConstBytes input() const override { return args().in; }

  void send_input(MoveFunction<void()> then) override {
    const auto each = std::make_shared<MoveFunction<void()>>(std::move(then));
    for (int step = 1; step < size(); ++step) {
      send((rank() + step) % size(), 0, input(), [each] { (*each)(); });
    }
  }

  void receive_input(Rank peer, MoveFunction<void(ConstBytes)> then) override {
    stages_.push_back(staging(input().size()));
    const Bytes memory(stages_.back().data(), input().size());
    recv(peer, 0, memory, [memory, then = std::move(then)]() mutable { then(memory); });
  }

  void reduce(const std::vector<const std::byte*>& inputs) override {
    if (!done_) {
      return;
    }
    combine(args(), inputs, args().out);
    std::exchange(done_, {})({});
  }

  void fail_member(const Status& cause) override { fail(cause); }

 private:
  void begin() override {
    done_ = pending([] {});
    batches().add(std::static_pointer_cast<BatchedAllreduce>(shared_from_this()));
  }

  // The callback of the operation must not run inside the call that ends it.
  void on_failed(const Status& cause) override {
    batches().remove(tag(), cause);
    // A rank with other arguments may have published blocks for this one.
    shared().drop(tag());
    loop().post([done = std::exchange(done_, {})]() mutable {
      if (done) {
        done({});
      }
    });
  }

  Done done_;  // ends the part of the operation that is no message
  std::vector<Staging> stages_;
};

}  // namespace

bool goes_in_a_batch(const Operation::Setup& setup) {
  const std::size_t most = std::min(setup.options->exchange_bytes, BatchExchange::kMostBytes);
  return setup.batches != nullptr && setup.args.kind == OpKind::kAllreduce && setup.args.in.size() <= most;
}

std::shared_ptr<Operation> make_batched_allreduce(Operation::Setup setup) {
  return std::make_shared<BatchedAllreduce>(std::move(setup));
}

}  // namespace sirtaki::net
