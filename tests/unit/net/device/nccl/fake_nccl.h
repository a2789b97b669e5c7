// FakeNccl: fake functions of NCCL that return scripted results, record calls, and fail the test if a communicator is
// used after its end or before it is ready.
//
// One object at a time, because the functions carry no context. Not thread-safe.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/net/device/nccl/nccl_api.h"

namespace sirtaki::net::nccl::testing {

class FakeNccl {
 public:
  FakeNccl();
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  const Api& api() const { return api_; }
  Api& api() { return api_; }

  // Scripts the results of the next calls of `function`.
  void will_return(const std::string& function, std::vector<Outcome> outcomes);
  // Number of polls after each init, group and finalize that return kInProgress; -1: all.
  int polls = 0;
  // Asynchronous error of a communicator that is no longer in progress.
  Outcome async = Outcome::kSuccess;
  // The communicator that has it, in the order in which they are made; -1: all.
  int async_of = -1;

  const std::vector<std::string>& calls() const { return calls_; }
  int count(const std::string& function) const;
  int alive() const { return static_cast<int>(alive_.size()); }
  const Config& config() const { return config_; }

 private:
  struct Comm {
    int left = 0;  // polls that still return kInProgress
    int number = 0;
  };
  static FakeNccl& current();
  static Comm& comm(CommHandle handle);
  Outcome record(const std::string& function);
  Outcome end(CommHandle handle, const std::string& function);
  Outcome used(CommHandle handle, const std::string& function);
  void fill_life();
  void fill_calls();

  Api api_{};
  std::map<std::string, std::deque<Outcome>> script_;
  std::vector<std::string> calls_;
  std::set<Comm*> alive_;
  std::set<Comm*> grouped_;
  int group_depth_ = 0;
  Config config_;
};

}  // namespace sirtaki::net::nccl::testing
