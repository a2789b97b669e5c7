#include "tests/unit/net/device/nccl/fake_nccl.h"

#include <algorithm>

namespace sirtaki::net::nccl::testing {
namespace {

FakeNccl* the_fake = nullptr;

}  // namespace

FakeNccl::FakeNccl() {
  EXPECT_EQ(the_fake, nullptr);
  the_fake = this;
  fill_life();
  fill_calls();
}

FakeNccl::~FakeNccl() {
  EXPECT_EQ(alive(), 0) << "communicators were neither destroyed nor aborted";
  EXPECT_EQ(group_depth_, 0);
  for (Comm* left : alive_) {
    delete left;
  }
  the_fake = nullptr;
}

FakeNccl& FakeNccl::current() {
  return *the_fake;
}

FakeNccl::Comm& FakeNccl::comm(CommHandle handle) {
  return *reinterpret_cast<Comm*>(handle);
}

void FakeNccl::will_return(const std::string& function, std::vector<Outcome> outcomes) {
  script_[function].assign(outcomes.begin(), outcomes.end());
}

int FakeNccl::count(const std::string& function) const {
  return static_cast<int>(std::count(calls_.begin(), calls_.end(), function));
}

Outcome FakeNccl::record(const std::string& function) {
  if (function != "async") {
    calls_.push_back(function);
  }
  auto& answers = script_[function];
  if (answers.empty()) {
    return Outcome::kSuccess;
  }
  const Outcome answer = answers.front();
  answers.pop_front();
  return answer;
}

Outcome FakeNccl::end(CommHandle handle, const std::string& function) {
  EXPECT_EQ(alive_.erase(&comm(handle)), 1U) << function << " of a communicator that is gone";
  grouped_.erase(&comm(handle));
  delete &comm(handle);
  return record(function);
}

Outcome FakeNccl::used(CommHandle handle, const std::string& function) {
  EXPECT_TRUE(alive_.contains(&comm(handle))) << function << " of a communicator that is gone";
  EXPECT_EQ(comm(handle).left, 0) << function << " of a communicator that is busy";
  EXPECT_GT(group_depth_, 0) << function << " outside a group";
  grouped_.insert(&comm(handle));
  return record(function);
}

void FakeNccl::fill_life() {
  api_.get_version = [](int* version) {
    *version = 22809;
    return Outcome::kSuccess;
  };
  api_.get_unique_id = [](UniqueId* id) {
    id->internal[0] = 42;
    return current().record("get_unique_id");
  };
  api_.comm_init_rank_config = [](CommHandle* handle, int, UniqueId id, int, Config* config) {
    EXPECT_EQ(id.internal[0], 42);
    current().config_ = *config;
    const Outcome outcome = current().record("init");
    if (!is_error(outcome)) {
      auto* const made = new Comm{current().polls, current().count("init") - 1};
      current().alive_.insert(made);
      *handle = reinterpret_cast<CommHandle>(made);
    }
    return outcome;
  };
  api_.comm_finalize = [](CommHandle handle) {
    EXPECT_TRUE(current().alive_.contains(&comm(handle)));
    comm(handle).left = current().polls;
    return current().record("finalize");
  };
  api_.comm_destroy = [](CommHandle handle) { return current().end(handle, "destroy"); };
  api_.comm_abort = [](CommHandle handle) { return current().end(handle, "abort"); };
  api_.comm_get_async_error = [](CommHandle handle, Outcome* error) {
    EXPECT_TRUE(current().alive_.contains(&comm(handle))) << "a poll of a communicator that is gone";
    int& left = comm(handle).left;
    const int broken = current().async_of;
    const Outcome found = broken < 0 || broken == comm(handle).number ? current().async : Outcome::kSuccess;
    *error = left == 0 ? found : Outcome::kInProgress;
    left -= left > 0 ? 1 : 0;
    return current().record("async");
  };
  api_.get_error_string = [](Outcome) { return "a reason"; };
  api_.get_last_error = [](CommHandle) { return "and details"; };
  api_.group_start = [] {
    const Outcome outcome = current().record("group_start");
    current().group_depth_ += outcome == Outcome::kSuccess ? 1 : 0;
    return outcome;
  };
  api_.group_end = [] {
    --current().group_depth_;
    for (Comm* const comm : current().grouped_) {
      comm->left = current().polls;
    }
    current().grouped_.clear();
    return current().record("group_end");
  };
}

void FakeNccl::fill_calls() {
  api_.all_reduce = [](const void*, void*, std::size_t, Element, Reduction, CommHandle handle, NativeStream) {
    return current().used(handle, "all_reduce");
  };
  api_.reduce = [](const void*, void*, std::size_t, Element, Reduction, int, CommHandle handle, NativeStream) {
    return current().used(handle, "reduce");
  };
  api_.broadcast = [](const void*, void*, std::size_t, Element, int, CommHandle handle, NativeStream) {
    return current().used(handle, "broadcast");
  };
  api_.all_gather = [](const void*, void*, std::size_t, Element, CommHandle handle, NativeStream) {
    return current().used(handle, "all_gather");
  };
  api_.reduce_scatter = [](const void*, void*, std::size_t, Element, Reduction, CommHandle handle, NativeStream) {
    return current().used(handle, "reduce_scatter");
  };
  api_.send = [](const void*, std::size_t, Element, int, CommHandle handle, NativeStream) {
    return current().used(handle, "send");
  };
  api_.recv = [](void*, std::size_t, Element, int, CommHandle handle, NativeStream) {
    return current().used(handle, "recv");
  };
}

}  // namespace sirtaki::net::nccl::testing
