// DeviceTransport: transport for GPU tensors that are not compressed on the GPU: NCCL if every rank supports it, else
// staging through pinned host memory.
//
// Ranks decide once, when they have agreed on the first operation or stream that asks for the transport. They exchange
// reports on NCCL and its version over the collectives of the host, connect if all versions are equal, and exchange the
// results. A later failure ends the job. Each process set decides for itself (device_sets.h); all use one order of
// launches.
// It also holds the resources for work on the device: a stream for copies and kernels, a poller that reports their
// completion, and reusable device memory.
// Owner: Session. Thread: loop. Operations and streams, not this class, choose the tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compression/device_coding.h"
#include "runtime/base/loop.h"
#include "runtime/base/task.h"
#include "runtime/base/telemetry/log.h"
#include "runtime/base/telemetry/stats.h"
#include "runtime/engine/device/device_memory.h"
#include "runtime/engine/device/device_sets.h"
#include "runtime/engine/device/device_stage.h"
#include "runtime/engine/device/event_poller.h"
#include "runtime/engine/device/nccl_ids.h"
#include "runtime/net/device/launch_server.h"
#include "runtime/net/device/nccl/loader.h"
#include "runtime/net/device/nccl/nccl_collectives.h"
#include "runtime/net/device/ordered_device.h"
#include "runtime/net/link/point_to_point.h"

namespace sirtaki::engine {

struct DeviceTransportOptions {
  std::string data = "auto";  // device.data
  bool sums_on_hosts = true;  // DeviceWork::on_host if several hosts have several ranks; equal on all ranks
  net::nccl::NcclOptions nccl;
  EventPollerOptions poller;
};

// Dependencies; all must outlive the transport.
struct DeviceTransportDeps {
  Loop& loop;
  net::Collectives& net;
  net::PointToPoint& link;
  net::LaunchServer* launches;  // on rank 0, if NCCL is possible; null elsewhere
  DeviceStage& stage;
  Logger& log;
  Stats& stats;
  std::function<void(const Status&)> broken;  // called if NCCL fails; the text names the rank
};

class DeviceTransport {
 public:
  // The collectives of device memory; null: host memory.
  using Answer = Result<net::DeviceCollectives*>;

  // `library`: the NCCL of this rank, or the error of loading it.
  DeviceTransport(const DeviceTransportDeps& deps, const DeviceTransportOptions& options,
                  Result<net::nccl::Library> library);
  ~DeviceTransport();
  DeviceTransport(const DeviceTransport&) = delete;
  DeviceTransport& operator=(const DeviceTransport&) = delete;

  // Requires an operation that all ranks have agreed on. Calls `then` exactly once: inline if the transport is decided
  // and healthy, later otherwise.
  void when_decided(MoveFunction<void(Answer)> then);
  // Does the same for an operation of these ranks; empty: all. See DeviceSets::when_decided().
  void when_decided(const std::vector<Rank>& ranks, MoveFunction<void(Answer)> then);
  // Returns true if the transport is decided to be host memory.
  bool host_only() const { return transport_ == Transport::kHost; }
  // Returns the same for operations of these ranks; empty: all.
  bool host_only(const std::vector<Rank>& ranks) const;
  // Returns "undecided", "host", "nccl" or "refused": the transport of operations of all ranks, but "nccl" if any
  // process set uses it.
  std::string_view name() const;

  // Creates the stream for copies. Call it before the first copy unless when_decided() has run. An error means that the
  // device failed.
  Status open_copies();
  // Queues a copy; copies and kernels run in order. An error means that the device failed.
  Status copy(std::byte* to, const std::byte* from, std::size_t bytes);
  // Fills `bytes` bytes of float32 with `value`.
  Status fill(std::byte* to, std::size_t bytes, float value);
  // The queue for kernels, in order with copies.
  compression::DeviceQueue queue() { return {deps_.stage.device().kernels(), copies_.native}; }
  // Returns the result of a launch as a Status.
  static Status queued(kernels::cuda::Launch launch);
  // Calls `then` exactly once, later: ok when all work queued so far is done. `queued` is the result of queueing it; an
  // error there means that the device failed, and ends the job.
  void when_copied(const Status& queued, Done then);
  Result<device::Mark> mark_copies() { return deps_.stage.mark_in_loop(copies_); }
  // Makes later work on `before` wait for the work queued so far.
  Status order_before(device::Stream before);
  // Returns device memory for an operation. Drop it when all copies that use it have been queued, before the transport
  // ends or after close(). kExhausted if the device has no memory left; everything else goes on.
  Result<DeviceMemory::Block> take(std::size_t bytes) { return memory_.take(bytes); }
  // Returns the same for the life of a stream; see DeviceMemory::keep().
  Result<DeviceMemory::Block> keep(std::size_t bytes) { return memory_.keep(bytes); }
  // Releases the returned blocks once their uses are over, unless work on the device could wait for another rank then:
  // a release waits for all work of the device. Calls `then` exactly once, inline if there are none; an error means
  // that the device failed, or that the job is over.
  void release_spare(Done then);
  // Returns the size of the block that take() or keep() could not allocate since the last call of this method, if there
  // is one.
  std::optional<std::size_t> take_refusal() { return memory_.take_refusal(); }
  DeviceStage& stage() { return deps_.stage; }
  Loop& loop() { return deps_.loop; }
  Logger& log() { return deps_.log; }
  Counter& nccl_bytes() { return nccl_bytes_; }
  Counter& encoded_bytes() { return encoded_bytes_; }

  // Ends pending and later operations over NCCL, and waiters for copies, with `cause`.
  void abort(const Status& cause);
  // Ends operations with `cause`, and calls `then` once NCCL has been closed in order and the device has done all work
  // of the runtime. Other ranks may have to close, too, and a kernel of the program may never end, so the caller needs
  // a deadline. Call it after DeviceStage::end().
  void leave(const Status& cause, Task then);
  // Frees NCCL and device resources. Leaks memory, that of the stage included, unless the device has done all work of
  // the runtime by now: a release waits for the device, which may hang. Requires that no user is left.
  void close();

 private:
  enum class Transport : std::uint8_t { kUndecided, kAsking, kHost, kNccl, kRefused };

  bool never() const { return options_.data == "host" || deps_.net.size() == 1; }
  // Opens NCCL at the first call, without other ranks, and does all that may synchronize with the device. Returns its
  // result.
  const Status& open_nccl();
  Result<std::unique_ptr<net::nccl::NcclCollectives>> make_nccl();
  void exchange(std::uint16_t number, const Status& own, void (DeviceTransport::*then)(const Status&));
  Status judge(ConstBytes reports) const;
  void on_able(const Status& all);
  void on_connected(const Status& all);
  void decide(Transport transport, const Status& why);
  void answer(MoveFunction<void(Answer)> then);
  void leave_when_drained(Task then);
  bool launched_over() const;
  bool drained();

  const DeviceTransportDeps deps_;
  const DeviceTransportOptions options_;
  const Result<net::nccl::Library> library_;
  Counter& nccl_bytes_;
  Counter& encoded_bytes_;  // uncompressed size
  Transport transport_ = Transport::kUndecided;
  Status why_;  // reason for host memory or refusal
  std::vector<MoveFunction<void(Answer)>> waiters_;
  std::unique_ptr<NcclIds> ids_;
  std::unique_ptr<NcclIds> host_ids_;  // for the ranks of this host, if hosts sum first
  DeviceSets sets_;
  std::optional<Status> opened_;                // result of open_nccl()
  net::nccl::NcclCollectives* nccl_ = nullptr;  // owned by ordered_; null if NCCL cannot be used
  std::unique_ptr<net::OrderedDevice> ordered_;
  DeviceMemory memory_;
  device::Stream copies_;
  EventPoller poller_;                       // polls marks on copies_
  std::optional<device::Mark> last_copies_;  // set by leave()
  bool closed_ = false;
  bool closes_nccl_ = false;  // leave() has begun to
  TimerId timer_;
  std::shared_ptr<DeviceTransport*> self_ = std::make_shared<DeviceTransport*>(this);
};

}  // namespace sirtaki::engine
