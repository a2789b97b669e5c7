#include "runtime/net/gloo/gloo_bridge.h"

namespace sirtaki::net {

GlooBridge::GlooBridge(PointToPoint& link, Envelope envelope) : link_(link), envelope_(envelope) {}

Envelope GlooBridge::next(std::map<std::pair<Rank, std::uint64_t>, std::uint32_t>& counters, Rank peer,
                          std::uint64_t stream) {
  // The streams of one collective of Gloo differ in their lowest eight bits.
  constexpr std::uint32_t kCounterBits = 24;
  Envelope envelope = envelope_;
  envelope.peer = peer;
  const std::uint32_t count = counters[{peer, stream}]++;
  envelope.slot = static_cast<std::uint32_t>((stream & 0xff) << kCounterBits) | (count & ((1U << kCounterBits) - 1));
  return envelope;
}

template <class Start>
void GlooBridge::post(std::shared_ptr<Transfers> transfers, Rank peer, Start start) {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    ++transfers->pending;
    number = transfers->waited + transfers->begun.size();
    transfers->begun.push_back({peer, false});
  }
  link_.loop().post([self = shared_from_this(), transfers = std::move(transfers), number, start]() mutable {
    Status failure;
    bool detached = false;
    {
      const std::lock_guard lock(self->mutex_);
      failure = self->failure_;
      detached = self->detached_;
    }
    if (detached || !failure.ok()) {
      self->settle(*transfers, number, failure);
      return;
    }
    start([self, transfers = std::move(transfers), number](const Status& status) {
      self->settle(*transfers, number, status);
    });
  });
}

void GlooBridge::send(Rank peer, std::uint64_t stream, ConstBytes data, std::shared_ptr<Transfers> transfers) {
  post(std::move(transfers), peer,
       [this, envelope = next(sent_, peer, stream), data](Done done) { link_.send(envelope, data, std::move(done)); });
}

void GlooBridge::recv(Rank peer, std::uint64_t stream, Bytes out, std::shared_ptr<Transfers> transfers) {
  post(std::move(transfers), peer, [this, envelope = next(received_, peer, stream), out](Done done) {
    link_.recv(envelope, out, std::move(done));
  });
}

void GlooBridge::settle(Transfers& transfers, std::uint64_t number, const Status& status) {
  bool cancels = false;
  {
    const std::lock_guard lock(mutex_);
    if (detached_) {
      return;
    }
    --transfers.pending;
    if (status.ok()) {
      transfers.begun[number - transfers.waited].done = true;
    } else {
      cancels = failure_.ok();
      failure_.update(status);
    }
  }
  changed_.notify_all();
  // Other transfers of this collective would wait for a lane that has given up.
  if (cancels) {
    link_.cancel(envelope_.tag, status);
  }
}

Result<Rank> GlooBridge::wait(Transfers& transfers) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !failure_.ok() || (!transfers.begun.empty() && transfers.begun.front().done); });
  if (!failure_.ok()) {
    return failure_;
  }
  const Rank peer = transfers.begun.front().peer;
  transfers.begun.pop_front();
  ++transfers.waited;
  return peer;
}

void GlooBridge::release(Transfers& transfers) {
  std::unique_lock lock(mutex_);
  if (transfers.pending == 0 || detached_) {
    return;
  }
  if (failure_.ok()) {
    lock.unlock();
    link_.loop().post([self = shared_from_this()] {
      const Status cause(Code::kAborted, "the operation gave up a transfer");
      self->fail(cause);
      const std::lock_guard guard(self->mutex_);
      if (!self->detached_) {
        self->link_.cancel(self->envelope_.tag, cause);
      }
    });
    lock.lock();
  }
  changed_.wait(lock, [&] { return transfers.pending == 0 || detached_; });
}

void GlooBridge::fail(const Status& cause) {
  {
    const std::lock_guard lock(mutex_);
    failure_.update(cause);
  }
  changed_.notify_all();
}

void GlooBridge::detach(const Status& cause) {
  {
    const std::lock_guard lock(mutex_);
    failure_.update(cause);
    detached_ = true;
  }
  changed_.notify_all();
}

Status GlooBridge::failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace sirtaki::net
