#include "runtime/engine/device/device_stage.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/base/check.h"

namespace sirtaki::engine {

Result<std::unique_ptr<DeviceStage>> DeviceStage::create(std::unique_ptr<device::DeviceApi> device,
                                                         DeviceStageDeps deps, const DeviceStageOptions& options) {
  std::unique_ptr<DeviceStage> stage(new DeviceStage(std::move(device), std::move(deps), options));
  SRT_TRY(stage->prepare());
  return stage;
}

DeviceStage::DeviceStage(std::unique_ptr<device::DeviceApi> device, DeviceStageDeps deps,
                         const DeviceStageOptions& options)
    : device_(std::move(device)),
      deps_(std::move(deps)),
      options_(options),
      fetched_bytes_(deps_.stats.counter("device.fetched_bytes")),
      returned_bytes_(deps_.stats.counter("device.returned_bytes")),
      pinned_bytes_(deps_.stats.gauge("device.pinned_bytes")),
      memory_(*device_),
      marks_(*device_),
      pause_(options.first_poll) {}

Status DeviceStage::prepare() {
  // High priority for returns, because the program waits for results, but not for fetches.
  SRT_ASSIGN(in_, device_->make_stream(device::Priority::kNormal));
  SRT_ASSIGN(out_, device_->make_stream(device::Priority::kHigh));
  return {};
}

DeviceStage::~DeviceStage() {
  last_visit_.emplace(*device_);
  deps_.loop.cancel(poll_timer_);
  deps_.loop.cancel(end_timer_);
  // A release would synchronize with the device, which may hang.
  if (!drained()) {
    memory_.abandon();
  }
  for (const device::Stream stream : {in_, out_}) {
    if (stream != device::Stream()) {
      device_->destroy(stream);
    }
  }
}

Result<device::PinnedBlock> DeviceStage::try_take(std::size_t bytes) {
  SRT_IN_LOOP(deps_.loop);
  SRT_TRY(ended_);
  Result<device::PinnedBlock> block = memory_.take(bytes);
  pinned_bytes_.set(static_cast<std::int64_t>(memory_.held_bytes()));
  return block;
}

Result<device::PinnedBlock> DeviceStage::take(std::size_t bytes) {
  Result<device::PinnedBlock> block = try_take(bytes);
  return block ? std::move(block) : Result<device::PinnedBlock>(ended_.ok() ? fail(block.status()) : ended_);
}

void DeviceStage::fetch(Bytes to, const std::byte* from, Result<device::Mark> after, Done then) {
  SRT_IN_LOOP(deps_.loop);
  Result<device::Mark> end = ended_.ok() ? start_fetch(to, from, std::move(after)) : ended_;
  cut_off_ = cut_off_ || (ended_.ok() && !end);
  const Status status = end.status();
  fetching_.push_back({end ? std::move(*end) : device::Mark(), std::move(then), deps_.loop.now() + options_.deadline});
  if (!status.ok()) {
    static_cast<void>(fail(status));
    return;
  }
  fetched_bytes_.add(to.size());
  pause_ = options_.first_poll;
  poll_later();
}

Result<device::Mark> DeviceStage::start_fetch(Bytes to, const std::byte* from, Result<device::Mark> after) {
  if (!after || to.empty()) {
    return after;
  }
  if (after->event()) {
    SRT_TRY(device_->wait(in_, after->event()));
  }
  SRT_TRY(device_->copy(in_, to.data(), from, to.size()));
  return marks_.record_here(in_);
}

Status DeviceStage::put_back(device::PinnedBlock block, std::byte* to) {
  SRT_IN_LOOP(deps_.loop);
  SRT_TRY(ended_);
  if (block.bytes().empty()) {
    return {};
  }
  Result<device::Mark> end = start_return(block, to);
  const Status status = end.status();
  returned_bytes_.add(block.bytes().size());
  returning_.push_back({end ? std::move(*end) : device::Mark(), std::move(block)});
  if (!status.ok()) {
    // The device may still read the block.
    cut_off_ = true;
    return fail(status);
  }
  poll_later();
  return {};
}

Result<device::Mark> DeviceStage::start_return(const device::PinnedBlock& block, std::byte* to) {
  SRT_TRY(device_->copy(out_, to, block.bytes().data(), block.bytes().size()));
  return marks_.record_here(out_);
}

// The last mark covers all copies before it.
Status DeviceStage::order_before(device::Stream program) {
  SRT_IN_LOOP(deps_.loop);
  SRT_TRY(ended_);
  if (returning_.empty()) {
    return {};
  }
  const Status ordered = device_->wait(program, returning_.back().end.event());
  return ordered.ok() ? ordered : fail(ordered);
}

void DeviceStage::poll_later() {
  if (poll_timer_ != TimerId() || (fetching_.empty() && returning_.empty())) {
    return;
  }
  poll_timer_ = deps_.loop.after(pause_, [this] {
    poll_timer_ = {};
    poll();
  });
  pause_ = std::min(2 * pause_, options_.last_poll);
}

void DeviceStage::poll() {
  if (const Status over = deps_.job_over(); !over.ok()) {
    end(over);
  } else if (const Status status = poll_all(); !status.ok()) {
    static_cast<void>(fail(status));
  } else {
    poll_later();
  }
}

Status DeviceStage::poll_all() {
  SRT_TRY(poll_returns());
  // Moved out first, because a callback may add fetches or end all that are left.
  std::deque<Fetch> arrived;
  const Status polled = take_arrived(fetching_, arrived);
  for (Fetch& fetch : arrived) {
    pause_ = options_.first_poll;
    fetch.then({});
  }
  SRT_TRY(polled);
  if (!fetching_.empty() && deps_.loop.now() >= fetching_.front().deadline) {
    return {Code::kTimeout,
            "the GPU has not finished in time the work queued before a tensor of an operation. Likely cause: a kernel "
            "hangs, or waits for a result that comes later"};
  }
  return {};
}

Status DeviceStage::poll_returns() {
  std::deque<Return> arrived;
  return take_arrived(returning_, arrived);
}

template <class Flights>
Status DeviceStage::take_arrived(Flights& flights, Flights& arrived) const {
  Status status;
  std::vector<device::Stream> behind;  // streams with a mark that has not passed, so none of the later ones has
  const auto passed = [&](const device::Mark& mark) {
    if (!mark.event()) {
      return true;
    }
    if (std::ranges::find(behind, mark.stream()) != behind.end()) {
      return false;
    }
    const Result<bool> done = device_->done(mark.event());
    status = done.status();
    if (!done || !*done) {
      behind.push_back(mark.stream());
    }
    return done && *done;
  };
  std::erase_if(flights, [&](auto& flight) {
    const bool over = status.ok() && passed(flight.end);
    if (over) {
      arrived.push_back(std::move(flight));
    }
    return over;
  });
  return status;
}

void DeviceStage::end(const Status& cause) {
  SRT_IN_LOOP(deps_.loop);
  ended_.update(cause);
  deps_.loop.cancel(poll_timer_);
  poll_timer_ = {};
  if (std::exchange(report_lost_, false)) {
    deps_.lost(ended_);
  }
  for (Fetch& fetch : std::exchange(fetching_, {})) {
    returning_.push_back({std::move(fetch.end), {}});
    fetch.then(ended_);
  }
  // returning_ is kept: the device may still use memory of its copies.
}

bool DeviceStage::drained() {
  if (cut_off_ || !poll_returns().ok() || !returning_.empty() || !fetching_.empty()) {
    return false;
  }
  // A release waits for the kernels of the program as well, and one of them may never end.
  if (!all_work_) {
    Result<device::Mark> mark = marks_.record_all_here();
    cut_off_ = !mark;
    if (!mark) {
      return false;
    }
    all_work_ = std::move(*mark);
  }
  const Result<bool> done = device_->done(all_work_->event());
  return done && *done;
}

// Ends everything later, because the caller may be in the middle of a change of state.
Status DeviceStage::fail(const Status& cause) {
  if (ended_.ok()) {
    ended_ = Status(
        cause.code(),
        "rank " + std::to_string(deps_.rank) + " has lost its GPU, " + deps_.device + ": " + std::string(cause.text()),
        {deps_.rank, ""});
    report_lost_ = true;
  }
  deps_.loop.cancel(poll_timer_);
  poll_timer_ = {};
  if (end_timer_ == TimerId()) {
    end_timer_ = deps_.loop.after(Duration(0), [this] {
      end_timer_ = {};
      end(ended_);
    });
  }
  return ended_;
}

}  // namespace sirtaki::engine
