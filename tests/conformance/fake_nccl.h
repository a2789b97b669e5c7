// FakeNccl: NCCL's functions for several ranks of one process, which move and add memory on a FakeDevice.
//
// For conformance tests of callers of NCCL. Work on a stream waits until all ranks of the communicator have made the
// call, as on a real device; an abort releases it. One instance at a time. Threads: the rules of NCCL; one device for
// all ranks, or one for each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/net/device/nccl/nccl_api.h"

namespace sirtaki::net::testing {

class FakeNccl {
 public:
  FakeNccl();
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  const nccl::Api& api() const { return api_; }
  // Makes NCCL report an error to `rank` from call number `calls` over a communicator on.
  void break_down(int rank, std::uint64_t calls);
  // Makes NCCL find all ranks of a communicator on one GPU, which it refuses.
  void put_on_one_gpu();

 private:
  using Memory = std::vector<std::byte>;
  // Call number n of all ranks of a communicator.
  struct Round {
    std::map<int, Memory> inputs;
  };
  struct World {
    int size = 0;
    int joined = 0;
    std::map<std::uint64_t, Round> rounds;
    std::map<std::pair<int, int>, std::deque<Memory>> mail;  // messages from one rank to another
  };
  struct Comm {
    std::shared_ptr<World> world;
    int rank = 0;
    std::uint64_t calls = 0;
    std::shared_ptr<bool> aborted = std::make_shared<bool>(false);
  };
  // Work of one call on its stream: hand the input in, then take the result when all inputs are there.
  struct Step {
    void* stream;
    std::function<void()> hand_in;
    std::function<bool()> can;
    std::function<void()> take;
  };
  using Take = std::function<void(const std::map<int, Memory>& inputs)>;

  static FakeNccl& current();
  static Comm& comm(nccl::CommHandle handle);
  void fill_life();
  void fill_calls();
  static nccl::Outcome collective(nccl::CommHandle handle, void* stream, const void* in, std::size_t bytes, Take take);
  static nccl::Outcome leave(nccl::CommHandle handle, bool abort);
  // Returns the calls of the group that the calling thread has open.
  static std::vector<Step>& group();
  nccl::Outcome end_group();

  nccl::Api api_{};
  std::map<int, std::shared_ptr<World>> worlds_;
  int last_id_ = 0;
  int broken_rank_ = -1;
  std::uint64_t broken_after_ = 0;
  bool on_one_gpu_ = false;
};

}  // namespace sirtaki::net::testing
