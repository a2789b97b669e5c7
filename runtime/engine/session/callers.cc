#include "runtime/engine/session/callers.h"

#include "runtime/engine/common/relaxed.h"

namespace sirtaki::engine {

// The state of one thread, which writes it; the loop reads it. No field depends on another, so relaxed accesses
// suffice.
struct Caller {
  std::atomic<int> inside{0};
  std::atomic<std::int64_t> since_ns{0};
  std::atomic<std::int64_t> left_ns{0};
  std::atomic<bool> reported{false};
  std::atomic<bool> gives_way{false};
};

namespace {

struct ThreadEntry {
  std::uint64_t serial = 0;
  std::shared_ptr<Caller> caller;
};

std::uint64_t next_serial() {
  // lint: allow(global) numbers registries, so that the entry of a closed registry is never taken for a current one
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

CallerRegistry::CallerRegistry() : serial_(next_serial()) {}

Caller& CallerRegistry::mine() {
  thread_local ThreadEntry entry;  // lint: allow(global) a thread's own entry, checked by serial
  if (entry.serial != serial_) {
    entry = {serial_, std::make_shared<Caller>()};
    const std::lock_guard lock(mutex_);
    callers_.push_back(entry.caller);
  }
  return *entry.caller;
}

CallerRegistry::Scope::Scope(CallerRegistry& registry, TimePoint now) : caller_(registry.mine()) {
  if (ns_of(now) - caller_.left_ns.load(kRelaxed) > kSliceGap.count()) {
    caller_.since_ns.store(ns_of(now), kRelaxed);
    caller_.reported.store(false, kRelaxed);
  }
  caller_.inside.fetch_add(1, kRelaxed);
}

CallerRegistry::Scope::~Scope() {
  caller_.left_ns.store(ns_of(std::chrono::steady_clock::now()), kRelaxed);
  caller_.inside.fetch_sub(1, kRelaxed);
}

bool CallerRegistry::Scope::became_long(TimePoint now) {
  if (ns_of(now) - caller_.since_ns.load(kRelaxed) < kLongWait.count()) {
    return false;
  }
  return !caller_.reported.exchange(true, kRelaxed);
}

bool CallerRegistry::Scope::gives_way() const {
  return caller_.gives_way.load(kRelaxed);
}

void CallerRegistry::set_gives_way(bool on) {
  mine().gives_way.store(on, kRelaxed);
}

Callers CallerRegistry::look(TimePoint now) {
  const std::lock_guard lock(mutex_);
  Callers callers;
  callers.blocked = true;
  std::erase_if(callers_, [](const auto& weak) { return weak.expired(); });
  for (const auto& weak : callers_) {
    const std::shared_ptr<Caller> caller = weak.lock();
    if (!caller) {
      continue;
    }
    const bool waits =
        caller->inside.load(kRelaxed) > 0 || ns_of(now) - caller->left_ns.load(kRelaxed) < kSliceGap.count();
    callers.waiting = callers.waiting || waits;
    callers.blocked = callers.blocked && waits;
    callers.gives_way = callers.gives_way || (waits && caller->gives_way.load(kRelaxed));
  }
  // The thread of a wait that gives way may have another thread of the program waiting for it outside the runtime:
  // autograd has a thread for each GPU, and backward() returns when that thread does. One such wait therefore makes the
  // rank blocked; the only consequence of a wrong guess is that this wait ends without a result.
  callers.blocked = callers.waiting && (callers.blocked || callers.gives_way);
  return callers;
}

bool Rest::lasts(TimePoint now, Duration used) {
  const Duration passed = now - looked_at_;
  const bool anew = !since_ || passed > kGap;
  if (!anew && passed < kLook) {
    return now - *since_ >= kLong;
  }
  if (anew || used - used_ > passed / 10) {
    since_ = now;
  }
  looked_at_ = now;
  used_ = used;
  return now - *since_ >= kLong;
}

}  // namespace sirtaki::engine
