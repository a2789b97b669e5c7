// DeviceTransport: how what a GPU does not encode travels: over NCCL, where every rank of the job can, or through the
// host's memory. Ranks agree on it when all have agreed on the first operation or stream that asks.
//
// They tell each other, over the host's collectives, whether they have NCCL and in which version; connect where all
// have the same; and tell each other how that went. It is settled once: what fails afterwards ends the job.
// Beside that it has what work on the device needs: a stream for copies and kernels, a watch that tells when they are
// done, and memory that is kept for the next.
// Owned by Session; loop thread. Not for: what travels, which operations and streams decide.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compression/device_coding.h"
#include "runtime/base/loop.h"
#include "runtime/base/task.h"
#include "runtime/base/telemetry/log.h"
#include "runtime/base/telemetry/stats.h"
#include "runtime/engine/device/device_stage.h"
#include "runtime/engine/device/event_poller.h"
#include "runtime/net/device/nccl/loader.h"
#include "runtime/net/device/nccl/nccl_collectives.h"
#include "runtime/net/device/ordered_device.h"
#include "runtime/net/link/point_to_point.h"

namespace sirtaki::engine {

struct DeviceTransportOptions {
  std::string data = "auto";  // device.data
  bool sums_on_hosts = true;  // DeviceWork::on_host, where several hosts have several ranks; the same on all ranks
  net::nccl::NcclOptions nccl;
  EventPollerOptions poller;
};

// What it works with; all outlive it.
struct DeviceTransportDeps {
  Loop& loop;
  net::Collectives& net;
  net::PointToPoint& link;
  DeviceStage& stage;
  Logger& log;
  Stats& stats;
  std::function<void(const Status&)> broken;  // NCCL has failed; the text names the rank
};

class DeviceTransport {
 public:
  // Null: through the host's memory.
  using Answer = Result<net::DeviceCollectives*>;

  // `library`: what this rank has found of NCCL.
  DeviceTransport(const DeviceTransportDeps& deps, const DeviceTransportOptions& options,
                  Result<net::nccl::Library> library);
  ~DeviceTransport();
  DeviceTransport(const DeviceTransport&) = delete;
  DeviceTransport& operator=(const DeviceTransport&) = delete;

  // For what all ranks have agreed on. `then` once; from within where it is known and well.
  void when_decided(MoveFunction<void(Answer)> then);
  // It is known that nothing goes over NCCL, and nothing is an error for it.
  bool host_only() const { return transport_ == Transport::kHost; }
  // "undecided", "host" or "nccl".
  std::string_view name() const;

  // Before the first copy where nobody has asked whether NCCL is there. An error is one of the device.
  Status open_copies();
  // Copies and kernels, in their order; behind them `before` goes on. An error is one of the device.
  Status copy(std::byte* to, const std::byte* from, std::size_t bytes);
  // `bytes` of float32 become `value`.
  Status fill(std::byte* to, std::size_t bytes, float value);
  compression::DeviceQueue queue() { return {deps_.stage.device().kernels(), copies_.native}; }
  static Status queued(kernels::cuda::Launch launch);
  // `then` once, later: ok when all that has been given in so far is done. `queued`: an error of the device that this
  // has met, with which the job ends.
  void when_copied(const Status& queued, Done then);
  Result<device::Mark> mark_copies() { return deps_.stage.mark_in_loop(copies_); }
  Status order_before(device::Stream before);
  // Memory of the device; it may go when the copies that use it have been given in, before the plane does or after
  // close(). What has come back is lent again; where all of that is too small, it is released before more is made.
  Result<std::shared_ptr<std::byte>> take(std::size_t bytes);
  DeviceStage& stage() { return deps_.stage; }
  Loop& loop() { return deps_.loop; }
  Counter& nccl_bytes() { return nccl_bytes_; }
  Counter& encoded_bytes() { return encoded_bytes_; }

  // What is in flight over NCCL, and comes later, ends with `cause`, and so does who waits for copies.
  void abort(const Status& cause);
  // At the end: what is in flight ends with `cause`; `then`, once, when NCCL has been left in order. The others may
  // have to leave as well, so whoever asks has a deadline.
  void leave(const Status& cause, Task then);
  // Frees what is there of NCCL and of the device, but for memory that it may still use. Nobody works with it any more.
  void close();

 private:
  enum class Transport : std::uint8_t { kUndecided, kAsking, kHost, kNccl, kRefused };
  class Ids;

  Status prepare();
  void exchange(std::uint16_t number, const Status& own, void (DeviceTransport::*then)(const Status&));
  Status judge(ConstBytes reports) const;
  void on_able(const Status& all);
  void on_connected(const Status& all);
  void decide(Transport transport, const Status& why);
  void answer(MoveFunction<void(Answer)> then);
  void leave_when_idle(Task then);
  bool drained() const;
  bool over(const std::optional<device::Mark>& mark) const;
  void take_back(std::size_t bytes, std::byte* memory);
  void release_spare();

  const DeviceTransportDeps deps_;
  const DeviceTransportOptions options_;
  const Result<net::nccl::Library> library_;
  Counter& nccl_bytes_;
  Counter& encoded_bytes_;  // of gradients, before
  Transport transport_ = Transport::kUndecided;
  Status why_;  // not over NCCL
  std::vector<MoveFunction<void(Answer)>> waiters_;
  std::unique_ptr<Ids> ids_;
  std::unique_ptr<Ids> host_ids_;  // among the ranks of this host, where hosts sum up first
  std::unique_ptr<net::nccl::NcclCollectives> connecting_;
  net::nccl::NcclCollectives* nccl_ = nullptr;  // of ordered_
  std::unique_ptr<net::OrderedDevice> ordered_;
  device::Stream copies_;
  EventPoller poller_;                            // of copies_
  std::optional<device::Mark> last_copies_;       // of a rank that leaves
  std::vector<std::byte*> made_;                  // all memory
  std::multimap<std::size_t, std::byte*> spare_;  // of it what nobody has, by size
  std::optional<device::Mark> spare_since_;       // copies that were given in before the last of it came back
  bool closed_ = false;
  TimerId timer_;
  std::shared_ptr<DeviceTransport*> self_ = std::make_shared<DeviceTransport*>(this);
};

}  // namespace sirtaki::engine
