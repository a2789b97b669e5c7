// Fake teardown for tests of one thread: it ends communicators at once, or when the test says so.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "runtime/net/device/nccl/teardown.h"

namespace sirtaki::net::nccl::testing {

class LocalTeardown final : public Teardown {
 public:
  void start(End end, CommHandle comm, std::shared_ptr<CommHandle> /*slot*/) override {
    pending_.emplace_back(end, comm);
    if (!held) {
      run();
    }
  }
  bool done() override { return pending_.empty(); }
  void run() {
    for (const auto& [end, comm] : std::exchange(pending_, {})) {
      end(comm);
    }
  }
  std::size_t pending() const { return pending_.size(); }

  bool held = false;  // communicators end in run() only

 private:
  std::vector<std::pair<End, CommHandle>> pending_;
};

}  // namespace sirtaki::net::nccl::testing
