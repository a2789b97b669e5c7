#include "tests/unit/device/fake_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace sirtaki::device::testing {
namespace {

void expect(bool good, const char* what) {
  if (!good) {
    throw std::logic_error(what);
  }
}

}  // namespace

FakeDevice::FakeDevice() = default;
FakeDevice::~FakeDevice() {
  if (seen_) {
    seen_->left = alive_;
  }
  for (const auto& [data, memory] : memory_) {
    if (memory.place == Place::kPinned) {
      std::free(data);
    }
  }
}

void FakeDevice::hold() {
  const std::lock_guard lock(mutex_);
  held_ = true;
}

void FakeDevice::run() {
  const std::lock_guard lock(mutex_);
  held_ = false;
  slow_ = false;
  progress();
}

void FakeDevice::be_slow() {
  const std::lock_guard lock(mutex_);
  held_ = true;
  slow_ = true;
}

void FakeDevice::catch_up() {
  const std::lock_guard lock(mutex_);
  run_all();
}

void FakeDevice::keep_time(std::function<TimePoint()> now, Duration copy) {
  const std::lock_guard lock(mutex_);
  now_ = std::move(now);
  copy_ = copy;
  time_ = now_();
  held_ = false;
}

void FakeDevice::occupy(Stream stream, Duration duration, std::function<void()> at_end) {
  auto* const queue = static_cast<Queue*>(stream.native);
  const std::lock_guard lock(queue->device->mutex_);
  expect(static_cast<bool>(queue->device->now_), "only work of a device that keeps time takes some");
  queue->device->add(*queue, {std::move(at_end), {}, duration});
}

void FakeDevice::refuse_next(Status status) {
  const std::lock_guard lock(mutex_);
  refusal_ = std::move(status);
}

void FakeDevice::break_down(Status status) {
  const std::lock_guard lock(mutex_);
  broken_ = std::move(status);
}

bool FakeDevice::step(Stream stream) {
  const std::lock_guard lock(mutex_);
  std::optional<GuardedMemory::Open> open;
  return step_locked(*static_cast<Queue*>(stream.native), open);
}

std::size_t FakeDevice::queued() const {
  const std::lock_guard lock(mutex_);
  std::size_t sum = 0;
  for (const auto& queue : queues_) {
    sum += queue->work.size();
  }
  return sum;
}

bool FakeDevice::step_locked(Queue& queue, std::optional<GuardedMemory::Open>& open) {
  if (queue.work.empty() || (queue.work.front().can && !queue.work.front().can())) {
    return false;
  }
  const Work work = std::move(queue.work.front());
  queue.work.pop_front();
  queue.front_ends.reset();
  ++queue.ended;
  if (!open) {
    open.emplace(queue.device->guarded_);
  }
  work.run();
  return true;
}

void FakeDevice::progress() {
  if (now_) {
    run_until_now();
  } else if (!held_) {
    run_all();
  }
}

FakeDevice::Queue* FakeDevice::next_until(TimePoint now) {
  Queue* next = nullptr;
  for (const auto& queue : queues_) {
    if (!queue->front_ends && !queue->work.empty() && (!queue->work.front().can || queue->work.front().can())) {
      queue->front_ends = time_ + queue->work.front().lasts;
    }
    if (queue->front_ends && *queue->front_ends <= now && (next == nullptr || *queue->front_ends < *next->front_ends)) {
      next = queue.get();
    }
  }
  return next;
}

void FakeDevice::run_until_now() {
  const TimePoint now = now_();
  std::optional<GuardedMemory::Open> open;
  while (Queue* const next = next_until(now)) {
    time_ = std::max(time_, *next->front_ends);
    step_locked(*next, open);
  }
  time_ = now;
}

void FakeDevice::run_all() {
  std::optional<GuardedMemory::Open> open;
  bool some = true;
  while (some) {
    some = false;
    for (const auto& queue : queues_) {
      while (step_locked(*queue, open)) {
        some = true;
      }
    }
  }
}

void FakeDevice::add(Queue& queue, Work work) {
  progress();
  queue.work.push_back(std::move(work));
  progress();
}

void FakeDevice::queue(void* stream, std::function<void()> work, std::function<bool()> can) {
  auto* const queue = static_cast<Queue*>(stream);
  const std::lock_guard lock(queue->device->mutex_);
  queue->device->add(*queue, {std::move(work), std::move(can), {}});
}

FakeDevice& FakeDevice::of(void* stream) {
  return *static_cast<Queue*>(stream)->device;
}

void FakeDevice::step_all() {
  std::optional<GuardedMemory::Open> open;
  for (const auto& queue : queues_) {
    step_locked(*queue, open);
  }
}

void FakeDevice::pass_time() {
  const std::lock_guard lock(mutex_);
  if (slow_) {
    step_all();
  } else if (!held_) {
    progress();
  }
}

std::shared_ptr<const FakeDevice::Seen> FakeDevice::watch() {
  const std::lock_guard lock(mutex_);
  seen_ = std::make_shared<Seen>();
  return seen_;
}

void FakeDevice::called(const char* what) {
  const std::lock_guard lock(mutex_);
  if (seen_ && !entered_.contains(std::this_thread::get_id())) {
    seen_->breaches.emplace_back(what);
  }
}

Status FakeDevice::enter_thread() {
  const std::lock_guard lock(mutex_);
  entered_.insert(std::this_thread::get_id());
  return {};
}

Result<Before> FakeDevice::visit() {
  SRT_TRY(enter_thread());
  const std::lock_guard lock(mutex_);
  ++visits_;
  return Before();
}

void FakeDevice::leave(const Before& /*before*/) {
  const std::lock_guard lock(mutex_);
  entered_.erase(entered_.find(std::this_thread::get_id()));
}

Status FakeDevice::refused() {
  const std::lock_guard lock(mutex_);
  return std::exchange(refusal_, Status());
}

Result<Stream> FakeDevice::make_stream(Priority /*priority*/) {
  called("make_stream");
  expect(!sealed_, "a stream is made after the start");
  const std::lock_guard lock(mutex_);
  if (free_ && *free_ == 0) {
    return Status(Code::kExhausted, "out of memory");
  }
  ++alive_;
  queues_.push_back(std::make_unique<Queue>(Queue{this, {}}));
  return Stream{queues_.back().get()};
}

Result<Event> FakeDevice::make_event() {
  called("make_event");
  expect(!sealed_, "an event is made after the start");
  const std::lock_guard lock(mutex_);
  ++alive_;
  marks_.push_back(std::make_unique<Mark>());
  return Event{marks_.back().get()};
}

void FakeDevice::limit_memory(std::size_t bytes, std::size_t held) {
  const std::lock_guard lock(mutex_);
  free_ = bytes - held;
}

int FakeDevice::memory_calls() const {
  const std::lock_guard lock(mutex_);
  return memory_calls_;
}

int FakeDevice::device_memory_calls() const {
  const std::lock_guard lock(mutex_);
  return device_memory_calls_;
}

void FakeDevice::synchronize(Place place) {
  ++memory_calls_;
  device_memory_calls_ += place == Place::kDevice ? 1 : 0;
  if (now_) {
    run_all();
  }
}

bool FakeDevice::hangs() {
  if (slow_) {
    run_all();
  }
  return std::ranges::any_of(queues_, [](const auto& queue) { return !queue->work.empty(); });
}

Result<std::byte*> FakeDevice::allocate(Place place, std::size_t bytes) {
  called("allocate");
  expect(!sealed_, "memory is allocated after the start");
  const std::lock_guard lock(mutex_);
  synchronize(place);
  if (place == Place::kDevice && free_) {
    if (bytes > *free_) {
      return Status(Code::kExhausted, "out of memory");
    }
    *free_ -= bytes;
  }
  ++alive_;
  auto* const data = place == Place::kDevice
                         ? guarded_.take(bytes)
                         : static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  memory_[data] = {place, bytes};
  return data;
}

void FakeDevice::destroy(Stream /*stream*/) {
  called("destroy a stream");
  const std::lock_guard lock(mutex_);
  --alive_;
}

void FakeDevice::destroy(Event /*event*/) {
  called("destroy an event");
  const std::lock_guard lock(mutex_);
  --alive_;
}

void FakeDevice::release(Place place, std::byte* data) {
  called("release");
  const std::lock_guard lock(mutex_);
  synchronize(place);
  if (seen_ && hangs()) {
    ++seen_->stuck;
  }
  --alive_;
  const Memory memory = memory_.extract(data).mapped();
  expect(memory.place == place, "memory is released as another kind");
  if (place == Place::kPinned) {
    std::free(data);
    return;
  }
  guarded_.give_back(data, memory.bytes);
  if (free_) {
    *free_ += memory.bytes;
  }
}

Status FakeDevice::record(Event event, Stream stream) {
  called("record");
  SRT_TRY(refused());
  const std::lock_guard lock(mutex_);
  auto* const mark = static_cast<Mark*>(event.native);
  const std::uint64_t number = ++mark->recorded;
  add(*static_cast<Queue*>(stream.native),
      {[mark, number] { mark->reached = std::max(mark->reached, number); }, {}, {}});
  return {};
}

Status FakeDevice::record_all(Event event) {
  called("record behind all");
  SRT_TRY(refused());
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<const Queue*, std::uint64_t>> all;
  for (const auto& queue : queues_) {
    all.emplace_back(queue.get(), queue->ended + queue->work.size());
  }
  if (behind_all_ == nullptr) {
    queues_.push_back(std::make_unique<Queue>(Queue{this, {}}));
    behind_all_ = queues_.back().get();
  }
  auto* const mark = static_cast<Mark*>(event.native);
  const std::uint64_t number = ++mark->recorded;
  const auto all_ended = [all] {
    return std::ranges::all_of(all, [](const auto& queue) { return queue.first->ended >= queue.second; });
  };
  add(*behind_all_, {[mark, number] { mark->reached = std::max(mark->reached, number); }, all_ended, {}});
  return {};
}

Status FakeDevice::wait(Stream stream, Event event) {
  called("wait");
  SRT_TRY(refused());
  const std::lock_guard lock(mutex_);
  const auto* const mark = static_cast<Mark*>(event.native);
  add(*static_cast<Queue*>(stream.native),
      {[] {}, [mark, number = mark->recorded] { return mark->reached >= number; }, {}});
  return {};
}

Result<bool> FakeDevice::done(Event event) {
  called("done");
  const std::lock_guard lock(mutex_);
  SRT_TRY(broken_);
  if (now_) {
    progress();
  } else if (slow_) {
    step_all();
  }
  const auto* const mark = static_cast<Mark*>(event.native);
  return mark->reached >= mark->recorded;
}

Status FakeDevice::copy(Stream stream, std::byte* to, const std::byte* from, std::size_t bytes) {
  called("copy");
  SRT_TRY(refused());
  if (bytes > 0) {
    const std::lock_guard lock(mutex_);
    add(*static_cast<Queue*>(stream.native), {[=] { std::memmove(to, from, bytes); }, {}, copy_});
  }
  return {};
}

}  // namespace sirtaki::device::testing
