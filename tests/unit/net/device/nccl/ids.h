// Fake exchange of ids, and a log sink that keeps its lines, for tests.
//
// Not thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/loop.h"
#include "runtime/base/telemetry/log.h"
#include "runtime/net/device/nccl/communicator.h"

namespace sirtaki::net::nccl::testing {

// Exchanges ids among communicators of one loop that share this object.
class LocalIds final : public IdExchange {
 public:
  explicit LocalIds(Loop& loop) : loop_(loop) {}

  void exchange(const std::string& key, const UniqueId* own, MoveFunction<void(Result<UniqueId>)> done) override {
    keys_.push_back(key);
    if (own != nullptr) {
      ids_.emplace(key, *own);
    }
    waiting_[key].push_back(std::move(done));
    if (silent || !ids_.contains(key)) {
      return;
    }
    for (auto& waiter : std::exchange(waiting_[key], {})) {
      loop_.post([moved = std::move(waiter),
                  answer = refusal.ok() ? Result<UniqueId>(ids_.at(key)) : refusal]() mutable { moved(answer); });
    }
  }

  bool silent = false;  // no exchange completes
  Status refusal;       // the result of every exchange, if set
  const std::vector<std::string>& keys() const { return keys_; }

 private:
  Loop& loop_;
  std::map<std::string, UniqueId> ids_;
  std::map<std::string, std::vector<MoveFunction<void(Result<UniqueId>)>>> waiting_;
  std::vector<std::string> keys_;
};

class Lines final : public LogSink {
 public:
  explicit Lines(std::vector<std::string>& lines) : lines_(lines) {}
  void write(LogLevel /*level*/, std::string_view line) override { lines_.emplace_back(line); }

 private:
  std::vector<std::string>& lines_;
};

}  // namespace sirtaki::net::nccl::testing
