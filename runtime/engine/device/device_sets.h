// DeviceSets: decides for each process set whether its operations on GPUs use NCCL or host memory.
//
// The ranks of a set decide once, when each of them runs an operation that asks: all of them must have the same NCCL
// and connect. Rank 0 collects their answers (net/device/launch_agreement.h); it may be no member, and have
// no GPU. Owner: DeviceTransport. Thread: loop.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/loop.h"
#include "runtime/base/task.h"
#include "runtime/base/telemetry/log.h"
#include "runtime/engine/device/nccl_ids.h"
#include "runtime/net/collectives/collectives.h"
#include "runtime/net/device/nccl/nccl_collectives.h"
#include "runtime/net/device/ordered_device.h"

namespace sirtaki::engine {

class DeviceSets {
 public:
  // The collectives of device memory; null: host memory.
  using Answer = Result<net::DeviceCollectives*>;
  // NCCL of this rank.
  struct Nccl {
    Status status;  // ok if this rank is able
    int version = 0;
    net::OrderedDevice* ordered = nullptr;              // never null
    net::nccl::NcclCollectives* collectives = nullptr;  // null if it is not able
  };
  struct Deps {
    Loop& loop;
    net::Collectives& net;  // collectives of the job, which must outlive this
    Logger& log;
    bool demanded = false;       // device.data = nccl
    std::function<Nccl()> open;  // opens NCCL at the first call
  };

  explicit DeviceSets(Deps deps) : deps_(std::move(deps)) {}

  // Requires an operation of these ranks that this rank runs, and others may run later; they are ascending, and more
  // than one. Calls `then` exactly once: inline for a set that is decided and healthy, or as soon as this rank is not
  // able.
  void when_decided(const std::vector<Rank>& ranks, MoveFunction<void(Answer)> then);
  // Returns true if the set is decided to use host memory.
  bool host_only(const std::vector<Rank>& ranks) const;
  // Returns whether a set uses NCCL.
  bool use_nccl() const;
  // Ends agreements, and those that begin later, with `cause`.
  void abort(const Status& cause);
  // Frees collectives of the host. Call it after abort() or without agreements, when NCCL has been freed.
  void close() { sets_.clear(); }

 private:
  enum class State : std::uint8_t { kUndecided, kAsking, kHost, kNccl, kEnded };
  struct Set {
    State state = State::kUndecided;
    Status why = {};  // cause of kEnded
    net::DeviceCollectives* device = nullptr;
    std::unique_ptr<net::Collectives> host = {};  // collectives of the set, for ids
    std::unique_ptr<NcclIds> ids = {};
    std::vector<MoveFunction<void(Answer)>> waiters = {};
  };

  void ask(const std::vector<Rank>& ranks, Set& set);
  void on_outcome(const std::vector<Rank>& ranks, const net::SetOutcome& outcome);
  void use_host(const std::vector<Rank>& ranks, const std::string& why, Rank rank);
  void decide(Set& set, State state, const Status& why);
  void answer(const Set& set, MoveFunction<void(Answer)> then);

  const Deps deps_;
  std::map<std::vector<Rank>, Set> sets_;
  Status ended_;
  std::shared_ptr<DeviceSets*> self_ = std::make_shared<DeviceSets*>(this);
};

}  // namespace sirtaki::engine
