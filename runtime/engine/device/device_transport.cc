#include "runtime/engine/device/device_transport.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/engine/common/tags.h"
#include "runtime/engine/device/device_report.h"

namespace sirtaki::engine {
namespace {

// Arguments of device_tag().
enum Exchange : std::uint16_t { kAble = 0, kConnected = 1, kFirstId = 3, kFirstHostId = 0x8000 };

constexpr Duration kDrainPoll = std::chrono::milliseconds(1);

// Size of the pinned block from which device memory is filled.
constexpr std::size_t kFillBytes = std::size_t{1} << 20;

}  // namespace

DeviceTransport::DeviceTransport(const DeviceTransportDeps& deps, const DeviceTransportOptions& options,
                                 Result<net::nccl::Library> library)
    : deps_(deps),
      options_(options),
      library_(std::move(library)),
      nccl_bytes_(deps.stats.counter("device.nccl_bytes")),
      encoded_bytes_(deps.stats.counter("device.encoded_bytes")),
      sets_({deps.loop, deps.net, deps.log, options.data == "nccl",
             [this] {
               const Status& opened = open_nccl();
               return DeviceSets::Nccl{opened, library_ ? library_->version : 0, ordered_.get(), nccl_};
             }}),
      memory_(deps.stage.device()),
      poller_(deps.loop, deps.stage, options.poller) {
  if (never()) {
    transport_ = Transport::kHost;
  }
}

DeviceTransport::~DeviceTransport() = default;

std::string_view DeviceTransport::name() const {
  return transport_ == Transport::kNccl || sets_.use_nccl() ? "nccl"
         : transport_ == Transport::kHost                   ? "host"
         : transport_ == Transport::kRefused                ? "refused"
                                                            : "undecided";
}

// ---- agreement ----

void DeviceTransport::when_decided(MoveFunction<void(Answer)> then) {
  SRT_IN_LOOP(deps_.loop);
  if (transport_ != Transport::kUndecided && transport_ != Transport::kAsking) {
    answer(std::move(then));
    return;
  }
  waiters_.push_back(std::move(then));
  if (std::exchange(transport_, Transport::kAsking) == Transport::kUndecided) {
    exchange(kAble, open_nccl(), &DeviceTransport::on_able);
  }
}

void DeviceTransport::when_decided(const std::vector<Rank>& ranks, MoveFunction<void(Answer)> then) {
  if (ranks.empty()) {
    when_decided(std::move(then));
  } else if (host_only(ranks)) {
    then(nullptr);
  } else {
    sets_.when_decided(ranks, std::move(then));
  }
}

bool DeviceTransport::host_only(const std::vector<Rank>& ranks) const {
  return ranks.empty() ? host_only() : never() || ranks.size() == 1 || sets_.host_only(ranks);
}

void DeviceTransport::answer(MoveFunction<void(Answer)> then) {
  if (transport_ != Transport::kRefused) {
    then(transport_ == Transport::kNccl ? ordered_.get() : nullptr);
    return;
  }
  deps_.loop.post([then = std::move(then), why = why_]() mutable { then(why); });
}

const Status& DeviceTransport::open_nccl() {
  if (!opened_) {
    auto made = make_nccl();
    opened_ = made.status();
    nccl_ = made ? made->get() : nullptr;
    ordered_ = std::make_unique<net::OrderedDevice>(deps_.link, made ? std::move(*made) : nullptr, deps_.launches,
                                                    launch_tag(), deps_.broken);
  }
  return *opened_;
}

Result<std::unique_ptr<net::nccl::NcclCollectives>> DeviceTransport::make_nccl() {
  SRT_TRY(library_.status());
  SRT_TRY(deps_.stage.device().kernels_ready());
  SRT_TRY(open_copies());
  ids_ = std::make_unique<NcclIds>(deps_.net, device_tag(kFirstId));
  net::nccl::NcclOptions options = options_.nccl;
  options.rank = deps_.net.rank();
  options.size = deps_.net.size();
  if (const net::HostGroups* const groups = deps_.net.host_groups(); groups != nullptr && options_.sums_on_hosts) {
    host_ids_ = std::make_unique<NcclIds>(*groups->here, device_tag(kFirstHostId));
    options.host_rank = groups->here->rank();
    options.host_size = groups->here->size();
  }
  return net::nccl::NcclCollectives::create(
      {deps_.loop, library_->api, deps_.stage.device(), *ids_, deps_.log, host_ids_.get()}, options);
}

// Exchanges results; calls `then` with the first error of any rank, or with a difference of versions.
void DeviceTransport::exchange(std::uint16_t number, const Status& own, void (DeviceTransport::*then)(const Status&)) {
  struct Reports {
    std::vector<std::byte> mine;
    std::vector<std::byte> all;
  };
  const auto reports = std::make_shared<Reports>();
  reports->mine = encode_device_report({library_ ? library_->version : 0, !own.ok(), std::string(own.text())});
  const auto size = static_cast<std::size_t>(deps_.net.size());
  reports->all.resize(size * kDeviceReportBytes);
  net::CollectiveArgs args;
  args.kind = OpKind::kAllgather;
  args.tag = device_tag(number);
  args.dtype = DType::kU8;
  args.priority = std::numeric_limits<std::int32_t>::min();
  args.in = reports->mine;
  args.out = reports->all;
  args.recv_counts.assign(size, static_cast<std::int64_t>(kDeviceReportBytes));
  deps_.net.start(std::move(args), [weak = std::weak_ptr(self_), reports, then](Status status) {
    const auto self = weak.lock();
    if (!self) {
      return;
    }
    if (status.ok()) {
      status = (*self)->judge(reports->all);
    }
    if (status.code() == Code::kCorrupt) {
      // Fatal: other ranks may have read valid reports, and continue over NCCL.
      (*self)->deps_.broken(status);
    } else {
      ((*self)->*then)(status);
    }
  });
}

Status DeviceTransport::judge(ConstBytes reports) const {
  Status status;
  std::int32_t first_version = 0;
  for (Rank rank = 0; rank < deps_.net.size(); ++rank) {
    const std::string who = "rank " + std::to_string(rank);
    const auto report =
        decode_device_report(reports.subspan(static_cast<std::size_t>(rank) * kDeviceReportBytes, kDeviceReportBytes));
    if (!report) {
      return {Code::kCorrupt,
              who + ": " + std::string(report.status().text()) +
                  ". Likely cause: its memory or the network damages data, or its build differs",
              {rank, ""}};
    }
    first_version = rank == 0 ? report->version : first_version;
    if (report->failed) {
      status.update({Code::kUnavailable, who + ": " + report->text, {rank, ""}});
    } else if (report->version != first_version) {
      status.update({Code::kUnavailable,
                     who + " has NCCL " + net::nccl::version_text(report->version) + " and rank 0 has " +
                         net::nccl::version_text(first_version),
                     {rank, ""}});
    }
  }
  return status;
}

void DeviceTransport::on_able(const Status& all) {
  if (!all.ok() || transport_ != Transport::kAsking) {
    decide(Transport::kHost, all);
    return;
  }
  ordered_->connect([weak = std::weak_ptr(self_)](const Status& status) {
    if (const auto self = weak.lock()) {
      (*self)->exchange(kConnected, status, &DeviceTransport::on_connected);
    }
  });
}

void DeviceTransport::on_connected(const Status& all) {
  if (!all.ok() || transport_ != Transport::kAsking) {
    decide(Transport::kHost, all);
    return;
  }
  decide(Transport::kNccl, {});
}

void DeviceTransport::decide(Transport transport, const Status& why) {
  if (transport_ != Transport::kAsking) {
    return;  // the job has ended in the meantime
  }
  why_ = why;
  transport_ = transport;
  if (nccl_ != nullptr && transport != Transport::kNccl) {
    nccl_->drop_set(net::kJobSet, why);
  }
  if (transport == Transport::kNccl) {
    deps_.log.info("GPU tensors use NCCL " + net::nccl::version_text(library_->version) + " of " + library_->from +
                   " unless they are compressed");
  } else if (options_.data == "nccl") {
    transport_ = Transport::kRefused;
    why_ = why.with_context("device.data = nccl");
  } else {
    const LogLevel level = deps_.net.rank() == 0 ? LogLevel::kWarn : LogLevel::kInfo;
    deps_.log.write(level,
                    "GPU tensors are staged through host memory, not sent over NCCL: " + std::string(why.text()));
  }
  for (auto& then : std::exchange(waiters_, {})) {
    answer(std::move(then));
  }
}

// ---- copies and memory ----

Status DeviceTransport::open_copies() {
  if (copies_ == device::Stream()) {
    SRT_ASSIGN(copies_, deps_.stage.device().make_stream(device::Priority::kHigh));
  }
  return {};
}

Status DeviceTransport::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  return deps_.stage.device().copy(copies_, to, from, bytes);
}

Status DeviceTransport::fill(std::byte* to, std::size_t bytes, float value) {
  SRT_CHECK(bytes % sizeof value == 0);
  SRT_ASSIGN(device::PinnedBlock block, deps_.stage.take(std::min(bytes, kFillBytes)));
  for (std::size_t at = 0; at < block.bytes().size(); at += sizeof value) {
    std::memcpy(block.bytes().data() + at, &value, sizeof value);
  }
  Status queued;
  for (std::size_t at = 0; queued.ok() && at < bytes; at += kFillBytes) {
    queued = copy(to + at, block.bytes().data(), std::min(bytes - at, kFillBytes));
  }
  when_copied(queued, [block = std::move(block)](const Status& /*filled*/) {});
  return queued;
}

Status DeviceTransport::queued(kernels::cuda::Launch launch) {
  return launch.ok() ? Status() : unavailable("the device rejects a kernel with error " + std::to_string(launch.code));
}

void DeviceTransport::when_copied(const Status& queued, Done then) {
  const bool asks = queued.ok() && !closed_;
  poller_.when(asks ? mark_copies() : queued.ok() ? device::Mark() : Result<device::Mark>(queued), std::move(then));
}

Status DeviceTransport::order_before(device::Stream before) {
  if (closed_) {
    return {};
  }
  SRT_ASSIGN(const device::Mark mark, mark_copies());
  return deps_.stage.device().wait(before, mark.event());
}

// Nobody can take the blocks while their last uses are waited for.
void DeviceTransport::release_spare(Done then) {
  DeviceMemory::Spare spare = memory_.take_spare();
  if (spare.empty()) {
    then({});
    return;
  }
  when_copied({}, [weak = std::weak_ptr(self_), spare = std::move(spare),
                   then = std::move(then)](const Status& copied) mutable {
    const auto self = weak.lock();
    if (self && copied.ok() && (!(*self)->ordered_ || (*self)->ordered_->idle())) {
      (*self)->memory_.release(spare);
    } else if (self) {
      (*self)->memory_.put_back(std::move(spare));
    }
    then(copied);
  });
}

// ---- ends ----

void DeviceTransport::abort(const Status& cause) {
  SRT_IN_LOOP(deps_.loop);
  if (transport_ == Transport::kAsking) {
    decide(Transport::kHost, cause);
  }
  sets_.abort(cause);
  if (ordered_) {
    ordered_->abort(cause);
  }
  poller_.end(cause);
}

void DeviceTransport::leave(const Status& cause, Task then) {
  SRT_IN_LOOP(deps_.loop);
  if (transport_ == Transport::kAsking || (ordered_ && !ordered_->idle())) {
    abort(cause);
  } else {
    sets_.abort(cause);
    if (ordered_) {
      ordered_->end_agreements(cause);  // without an end of NCCL, which other ranks may be using
    }
  }
  poller_.end(cause);
  if (copies_ != device::Stream()) {
    if (auto last = mark_copies()) {
      last_copies_ = std::move(*last);
    }
  }
  leave_when_drained(std::move(then));
}

void DeviceTransport::leave_when_drained(Task then) {
  if (nccl_ != nullptr && launched_over() && !std::exchange(closes_nccl_, true)) {
    nccl_->close([weak = std::weak_ptr(self_), then = std::move(then)](const Status& /*closed*/) mutable {
      if (const auto self = weak.lock()) {
        (*self)->leave_when_drained(std::move(then));
      }
    });
  } else if (drained()) {
    then();
  } else {
    timer_ = deps_.loop.after(kDrainPoll, [weak = std::weak_ptr(self_), then = std::move(then)]() mutable {
      if (const auto self = weak.lock()) {
        (*self)->leave_when_drained(std::move(then));
      }
    });
  }
}

bool DeviceTransport::launched_over() const {
  if (ordered_ && !ordered_->idle()) {
    return false;
  }
  const auto done = last_copies_ ? deps_.stage.device().done(last_copies_->event()) : Result<bool>(true);
  return done && *done;
}

bool DeviceTransport::drained() {
  return launched_over() && (nccl_ == nullptr || nccl_->drained()) && deps_.stage.drained();
}

void DeviceTransport::close() {
  SRT_IN_LOOP(deps_.loop);
  closed_ = true;
  self_.reset();
  deps_.loop.cancel(timer_);
  if (copies_ != device::Stream()) {
    const bool over = last_copies_ && drained();
    memory_.close(over);
    if (!over) {
      deps_.stage.keep_pinned();
    }
    deps_.stage.device().destroy(copies_);
    copies_ = {};
  }
  last_copies_.reset();
  nccl_ = nullptr;
  ordered_.reset();
  sets_.close();
}

}  // namespace sirtaki::engine
