// FakeNccl: NCCL's functions for several ranks of one process, which move and add memory on a FakeDevice.
//
// Used by conformance tests of callers of NCCL. FakeNccl has the properties on which callers of NCCL hang or fail:
//   - a group is in progress at its end, and its work reaches the stream some polls later;
//   - the work of a group over one communicator is one kernel, which occupies the device of its rank until all ranks
//     have arrived: another one on that device starts later, whatever its stream;
//   - the groups of a communicator must consist of the same calls on all ranks, but for sends and receives;
//   - a send waits for a receive of the same size, and a receive for a send;
//   - an abort ends the kernels of its communicator only, and returns once their stream has passed them;
//   - the handle of a communicator is written again when the connection is made or ends.
// One instance at a time. Threads: the rules of NCCL. Each rank needs a device of its own, which is slow
// (FakeDevice::be_slow()): arrivals of other ranks are seen with time only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/net/device/nccl/nccl_api.h"
#include "tests/unit/device/fake_device.h"

namespace sirtaki::net::testing {

class FakeNccl {
 public:
  FakeNccl();
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  const nccl::Api& api() const { return api_; }
  // Makes NCCL report an error to `rank` from call number `calls` over a communicator on.
  void break_down(int rank, std::uint64_t calls, nccl::Outcome outcome = nccl::Outcome::kSystemError);
  // Makes NCCL find all ranks of a communicator on one GPU, which it refuses.
  void put_on_one_gpu();
  // Sets the poll after the end of a group at which its work reaches the stream; 1: the first one.
  void launch_at_poll(int poll);
  // Returns the number of groups that ranks have ended; NCCL starts a thread for each.
  int groups() const;
  // Returns the number of aborts that were called, and of those that wait for a device.
  int aborts() const;
  int waiting_aborts() const;
  // Ends aborts that wait for a device, after a test has failed.
  void give_up();

 private:
  using Memory = std::vector<std::byte>;
  // Call number n of all ranks of a communicator.
  struct Round {
    std::map<int, Memory> inputs;
  };
  // Send number n meets receive number n, of the same size.
  struct Route {
    std::vector<Memory> sent;
    std::vector<std::size_t> wanted;
  };
  struct World {
    int size = 0;
    int joined = 0;
    bool unequal = false;  // groups differ, or a send and its receive
    std::map<std::uint64_t, Round> rounds;
    std::map<std::uint64_t, std::string> groups;  // the calls of group number n, but for sends and receives
    std::map<std::pair<int, int>, Route> mail;    // messages from one rank to another
  };
  // The state that work on streams shares with its communicator, and needs after the end of that.
  struct Fate {
    bool aborted = false;
    int on_stream = 0;  // kernels that have not ended
    void* stream = nullptr;
  };
  struct Comm;
  // One call: hand the input in, then take the result when all inputs are there. All three hold the lock.
  struct Step {
    Comm* comm = nullptr;
    void* stream = nullptr;
    std::string text;  // equal on all ranks; empty for send and recv
    std::function<void()> hand_in;
    std::function<bool()> can;
    std::function<void()> take;
  };
  struct Comm {
    std::shared_ptr<World> world;
    int rank = 0;
    std::uint64_t calls = 0;
    std::uint64_t groups = 0;
    std::vector<Step> launching;        // calls of the group that ended last
    int polls_left = 0;                 // until they reach the stream
    nccl::CommHandle* place = nullptr;  // variable of the caller, which gets the handle again
    std::shared_ptr<Fate> fate = std::make_shared<Fate>();
  };
  using Residents = std::map<device::testing::FakeDevice*, const void*>;  // the kernel on each device
  using Take = std::function<void(const std::map<int, Memory>& inputs)>;

  static FakeNccl& current();
  static Comm& comm(nccl::CommHandle handle);
  void fill_life();
  void fill_calls();
  static nccl::Outcome collective(nccl::CommHandle handle, void* stream, const std::string& text, const void* in,
                                  std::size_t bytes, Take take);
  // Adds a send of `from`, or a receive into `to` if that is not null, to the group.
  static nccl::Outcome message(nccl::CommHandle handle, void* stream, std::pair<int, int> route, const void* from,
                               void* to, std::size_t bytes);
  nccl::Outcome abort(nccl::CommHandle handle);
  nccl::Outcome poll(Comm& comm, nccl::Outcome* error);
  void launch(Comm& comm, std::vector<Step> steps);
  // Returns the calls of the group that the calling thread has open.
  static std::vector<Step>& group();
  nccl::Outcome end_group();

  nccl::Api api_{};
  std::map<int, std::shared_ptr<World>> worlds_;
  int last_id_ = 0;
  int broken_rank_ = -1;
  std::uint64_t broken_after_ = 0;
  nccl::Outcome broken_with_ = nccl::Outcome::kSystemError;
  bool on_one_gpu_ = false;
  int launch_poll_ = 2;
  int groups_ = 0;
  int aborts_ = 0;
  int waiting_aborts_ = 0;
  bool gave_up_ = false;
  std::shared_ptr<Residents> residents_ = std::make_shared<Residents>();
};

}  // namespace sirtaki::net::testing
