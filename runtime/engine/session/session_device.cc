// Session, part: opens, uses and leaves the GPU.
#include <future>
#include <utility>

#include "runtime/base/config/config.h"
#include "runtime/base/telemetry/log.h"
#include "runtime/engine/common/tags.h"
#include "runtime/engine/device/device_transport.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/epoch/control_plane.h"
#include "runtime/engine/epoch/data_plane.h"
#include "runtime/engine/session/device_choice.h"
#include "runtime/engine/session/host_staged_ops.h"
#include "runtime/engine/session/session.h"
#include "runtime/engine/session/stream_table.h"
#include "runtime/net/device/launch_server.h"

namespace sirtaki::engine {
namespace {

// Copies take milliseconds, and so does leaving NCCL if other ranks leave; a GPU that hangs must not block close().
constexpr Duration kDeviceGrace = std::chrono::seconds(1);

net::nccl::NcclOptions nccl_options(const Config::DeviceOptions& device) {
  net::nccl::NcclOptions options;
  options.credit_bytes = static_cast<std::size_t>(device.nccl_credit_bytes);
  options.timeout = device.nccl_timeout;
  options.end_timeout = device.nccl_end_timeout;
  options.communicator.connect_timeout = device.nccl_connect_timeout;
  options.communicator.call_timeout = device.nccl_launch_timeout;
  return options;
}

}  // namespace

// The other ranks may wait for data that this rank can no longer send. In an elastic job they go on without it: after
// NCCL has failed when its program asks for the next epoch, and after the loss of its GPU in any case. Its program may
// wait for the GPU then, and never end.
void Session::on_device_lost(const Status& cause) {
  if (!closed_ && engine_->failure().ok()) {
    if (!job_.line) {
      control_->send(control::JobBroken{cause});
    } else if (cause.code() != Code::kRanksChanged) {
      loop_.after(control_->cause_grace(), [this] {
        if (!closed_) {
          job_.line->cut();
        }
      });
    }
  }
  fail(cause);
}

void Session::on_nccl_failed(const Status& why) {
  const std::string text = "NCCL has failed on rank " + std::to_string(job_.rank) + ": " + std::string(why.text());
  // The next epoch of an elastic job makes another communicator.
  const Status cause(job_.line ? Code::kRanksChanged : why.code(), text, {job_.rank, ""});
  // Operations that end with kPeerLost wait for the word of the coordinator, too.
  job_.line&& why.code() == Code::kPeerLost ? fail_unless_told(cause) : on_device_lost(cause);
}

// Rank 0 may have no GPU itself.
void Session::order_launches() {
  if (job_.rank == 0 && job_.size > 1 && config_->device.data != "host") {
    const auto bytes = static_cast<std::size_t>(config_->device.nccl_credit_bytes) / 2;
    launches_ = std::make_unique<net::LaunchServer>(data_->link(), net::LaunchServerOptions{launch_tag(), bytes},
                                                    [this](const Status& why) { on_nccl_failed(why); });
  }
}

Status Session::open_device(int index) {
  Status status(Code::kShutdown, "the session was shut down");
  // Loaded on the calling thread, as loading takes too long for the loop.
  const Result<net::nccl::Library> nccl = find_nccl(config_->device, job_.size, job_.open_nccl);
  bool host_only = true;
  loop_.run_sync([&] {
    status = stage_device(index, nccl);
    host_only = !plane_ || plane_->host_only();
  });
  if (status.ok() && host_only) {
    log_->info("tensors on " + device_name({DeviceType::kCuda, index}) + " travel through the host's memory");
  } else if (!status.ok()) {
    log_->warn(status.to_string());
  }
  return status;
}

Status Session::stage_device(int index, const Result<net::nccl::Library>& nccl) {
  SRT_ASSIGN(auto device, job_.open_device ? job_.open_device(index) : open_cuda_device(index));
  DeviceStageOptions options;
  options.deadline = config_->control.stall_fail;
  DeviceStageDeps deps{loop_,
                       stats_,
                       job_.rank,
                       device_name({DeviceType::kCuda, index}),
                       [this] { return engine_->failure(); },
                       [this](const Status& cause) { on_device_lost(cause); }};
  SRT_ASSIGN(stage_, DeviceStage::create(std::move(device), std::move(deps), options));
  DeviceTransportOptions plane;
  plane.data = config_->device.data;
  plane.sums_on_hosts = config_->device.codecs == "auto";
  plane.poller.deadline = config_->control.stall_fail;
  plane.nccl = nccl_options(config_->device);
  plane_ = std::make_unique<DeviceTransport>(
      DeviceTransportDeps{loop_, data_->collectives(), data_->link(), launches_.get(), *stage_, *log_, stats_,
                          [this](const Status& why) { on_nccl_failed(why); }},
      plane, nccl);
  ops_->use(*stage_, *plane_);
  streams_->use(*stage_, *plane_,
                PathSelector(*stage_, *plane_, data_->collectives(),
                             {.compresses = config_->device.codecs == "auto",
                              .fusion_bytes = config_->schedule.fusion_bytes,
                              .credit_bytes = config_->schedule.credit_bytes}));
  return {};
}

// Runs before the data plane closes, since ranks leave NCCL over it. The last results may still be on their way to the
// GPU.
void Session::leave_device(const Status& cause) {
  const auto left = std::make_shared<std::promise<void>>();
  const bool begun = loop_.run_sync([&] {
    if (plane_) {
      plane_->leave(cause, [left] { left->set_value(); });
    } else {
      left->set_value();
    }
  });
  if (begun) {
    left->get_future().wait_for(kDeviceGrace);
  }
  loop_.run_sync([this] {
    if (plane_) {
      plane_->close();
    }
    launches_.reset();
  });
}

}  // namespace sirtaki::engine
