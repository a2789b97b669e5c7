#include "runtime/engine/session/stream_handle.h"

#include <functional>
#include <mutex>
#include <utility>

#include "runtime/engine/session/stream_table.h"

namespace sirtaki::engine {
namespace {

Status not_open() {
  return invalid_argument("the stream is not open");
}

Status joined() {
  return invalid_argument("the stream is used while this rank waits in join(); use it when join() has returned");
}

}  // namespace

Status StreamHandle::check(const Entry& entry, int index, const TensorView& tensor) const {
  if (index < 0 || index >= static_cast<int>(entry.tensors.size())) {
    return invalid_argument("stream '" + entry.name + "' has no tensor number " + std::to_string(index));
  }
  const std::string& name = entry.tensors[static_cast<std::size_t>(index)];
  const Device& device = entry.views[static_cast<std::size_t>(index)].device;
  if (tensor.device != device) {
    return {Code::kInvalidArgument,
            "tensor '" + name + "' of stream '" + entry.name + "' is on " + device_name(tensor.device) + " on rank " +
                std::to_string(table_->rank_) + " but was registered on " + device_name(device) +
                "; create the optimizer after the model has moved",
            {table_->rank_, name}};
  }
  if (tensor.numel != 0 && tensor.data == nullptr) {
    return {
        Code::kInvalidArgument,
        "tensor '" + name + "' of stream '" + entry.name + "' has no memory on rank " + std::to_string(table_->rank_),
        {table_->rank_, name}};
  }
  if (device.type != DeviceType::kCpu &&
      reinterpret_cast<std::uintptr_t>(tensor.data) % dtype_size(tensor.dtype) != 0) {
    return {Code::kInvalidArgument,
            "tensor '" + name + "' of stream '" + entry.name + "' begins in the middle of an element on rank " +
                std::to_string(table_->rank_) + "; a GPU reads whole ones",
            {table_->rank_, name}};
  }
  return {};
}

template <class Turn>
void StreamHandle::in_turn(bool is_staged, Turn turn) const {
  if (HostStagedStream* const calls = is_staged ? table_->staged(id_) : nullptr) {
    calls->call(std::move(turn));
  } else {
    turn(Status());
  }
}

Status StreamHandle::ready(int index, TensorView tensor, bool absent, void* cuda_stream) const {
  const auto entry = table_->find(id_);
  if (!entry) {
    return not_open();
  }
  SRT_TRY(check(*entry, index, tensor));
  // The engine reports a wrong shape to all ranks, so it is no error of this call. A tensor on a GPU counts as ready
  // once its copy is on the host.
  const auto hand_over = [*this, index, absent](const TensorView& view, TimePoint at) {
    GradientStream* const s = table_->engine_.stream(id_);
    const bool accepted = s != nullptr && !s->joined();
    if (accepted) {
      s->ready(index, view, absent, at);
    }
    return accepted;
  };
  if (tensor.device.type == DeviceType::kCpu) {
    table_->loop_.post([*this, is_staged = entry->staged, tensor, hand_over, at = table_->loop_.now()] {
      in_turn(is_staged, [hand_over, tensor, at](const Status& given_up) {
        if (given_up.ok()) {
          hand_over(tensor, at);
        }
      });
    });
    return {};
  }
  // A tensor of another size is refused without reading its memory, which may be shorter.
  const TensorView& agreed = entry->views[static_cast<std::size_t>(index)];
  const bool reads = !absent && tensor.numel == agreed.numel && tensor.dtype == agreed.dtype;
  HostStagedStream::Source source{tensor, {cuda_stream}, table_->stage_->mark({cuda_stream}), reads};
  table_->loop_.post([*this, index, source = std::move(source), hand_over]() mutable {
    if (HostStagedStream* const calls = table_->staged(id_)) {
      calls->ready(index, std::move(source),
                   [*this, hand_over](const TensorView& view) { return hand_over(view, table_->loop_.now()); });
    }
  });
  return {};
}

Status StreamHandle::finish() const {
  const auto entry = table_->find(id_);
  if (!entry) {
    return not_open();
  }
  const TimePoint at = table_->loop_.now();
  table_->loop_.post([*this, is_staged = entry->staged, at, mark = entry->board->finish(at)] {
    in_turn(is_staged, [*this, at, mark](const Status& given_up) {
      if (GradientStream* s = table_->engine_.stream(id_); given_up.ok() && s != nullptr && !s->joined()) {
        s->finish(mark, at);
      }
    });
  });
  return {};
}

void StreamHandle::begin_wait(const std::shared_ptr<Entry>& entry) const {
  entry->waiting = std::make_shared<Slot>();
  table_->loop_.post([*this, entry, waiting = entry->waiting] {
    in_turn(entry->staged, [*this, entry, waiting](const Status& given_up) {
      if (!given_up.ok()) {
        end_wait(*entry, waiting, given_up);
        return;
      }
      wait_on_loop(entry->staged, [*this, entry, waiting](Status status) {
        waiting->complete(std::move(status));
        table_->call_done(*entry);
      });
    });
  });
}

// A caller of on_done() waits for this step and gets `cause`; a later wait belongs to the next step.
void StreamHandle::end_wait(Entry& entry, const std::shared_ptr<Slot>& waiting, const Status& cause) const {
  {
    const std::lock_guard lock(table_->mutex_);
    if (entry.waiting == waiting && !entry.on_done) {
      entry.waiting.reset();
    }
  }
  waiting->complete(cause);
  table_->call_done(entry);
}

void StreamHandle::wait_on_loop(bool is_staged, Done complete) const {
  GradientStream* const s = table_->engine_.stream(id_);
  if (s == nullptr || s->joined()) {
    complete(s == nullptr ? not_open() : joined());
    return;
  }
  HostStagedStream* const calls = is_staged ? table_->staged(id_) : nullptr;
  s->wait(calls == nullptr ? std::move(complete) : calls->at_end(std::move(complete)));
}

Status StreamHandle::on_done(Task done) const {
  done = table_->counted_(std::move(done));
  const std::lock_guard lock(table_->mutex_);
  if (table_->ended_) {
    return {Code::kShutdown, "the session has ended"};
  }
  const auto it = table_->entries_.find(id_);
  if (it == table_->entries_.end()) {
    return not_open();
  }
  // A stream that is being closed counts, too: the loop may still work on its memory.
  const std::shared_ptr<Entry>& entry = it->second;
  if (entry->waiting) {
    return invalid_argument("stream '" + entry->name + "': its step is waited for already");
  }
  entry->on_done = std::move(done);
  begin_wait(entry);
  return {};
}

std::optional<Status> StreamHandle::wait(Duration timeout) const {
  const auto entry = table_->find(id_);
  if (!entry) {
    return not_open();
  }
  std::shared_ptr<Slot> slot;
  {
    const std::lock_guard lock(table_->mutex_);
    if (!entry->waiting) {
      begin_wait(entry);
    }
    slot = entry->waiting;
  }
  std::optional<Status> status = table_->waiter_.wait(*slot, timeout);
  if (status && slot->done()) {
    const std::lock_guard lock(table_->mutex_);
    if (entry->waiting == slot) {
      entry->waiting.reset();
    }
  }
  return status;
}

std::optional<Status> StreamHandle::wait_tensors(std::span<const int> tensors, Duration timeout) const {
  const auto entry = table_->find(id_);
  if (!entry) {
    return not_open();
  }
  for (const int index : tensors) {
    if (index < 0 || index >= static_cast<int>(entry->tensors.size())) {
      return invalid_argument("stream '" + entry->name + "' has no tensor number " + std::to_string(index));
    }
  }
  if (entry->waits_for_tensors.exchange(true)) {
    return invalid_argument("stream '" + entry->name +
                            "': two threads wait for tensors at one time; wait from one thread");
  }
  const TimePoint begin = table_->loop_.now();
  entry->board->need(tensors, begin);
  std::optional<Status> status = Status();
  if (entry->staged || !entry->board->reduced(tensors)) {
    status = sleep_until_reduced(tensors, timeout);
    entry->board->slept(table_->loop_.now() - begin);
  }
  entry->waits_for_tensors = false;
  return status;
}

std::optional<Status> StreamHandle::sleep_until_reduced(std::span<const int> tensors, Duration timeout) const {
  auto slot = std::make_shared<Slot>();
  table_->loop_.post([*this, slot, tensors = std::vector<int>(tensors.begin(), tensors.end())]() mutable {
    in_turn(true, [*this, slot, tensors = std::move(tensors)](const Status& given_up) mutable {
      if (!given_up.ok()) {
        slot->complete(given_up);
        return;
      }
      GradientStream* const s = table_->engine_.stream(id_);
      if (s == nullptr || s->joined()) {
        slot->complete(s == nullptr ? not_open() : joined());
        return;
      }
      Done done = [slot](Status status) { slot->complete(std::move(status)); };
      if (HostStagedStream* const calls = table_->staged(id_)) {
        done = calls->at_end_of_tensors(std::move(done));
      }
      s->wait_tensors(std::move(tensors), std::move(done));
    });
  });
  return table_->waiter_.wait(*slot, timeout);
}

Result<Duration> StreamHandle::lasted() const {
  const auto entry = table_->find(id_);
  if (!entry) {
    return not_open();
  }
  return entry->board->lasted();
}

Result<std::vector<std::uint8_t>> StreamHandle::used() const {
  const auto entry = table_->find(id_);
  if (!entry) {
    return not_open();
  }
  std::vector<std::uint8_t> used(entry->tensors.size());
  for (std::size_t i = 0; i < used.size(); ++i) {
    const ResultKind kind = entry->board->kind(static_cast<int>(i));
    used[i] = kind.used ? kind.corrected ? StreamTable::kUsedCorrected : StreamTable::kUsed : std::uint8_t{0};
  }
  return used;
}

Status StreamHandle::abort(std::string why) const {
  if (!table_->find(id_)) {
    return not_open();
  }
  auto slot = std::make_shared<Slot>();
  const Status cause(Code::kAborted, "rank " + std::to_string(table_->rank_) + " gave the step up: " + std::move(why),
                     {table_->rank_, ""});
  // Overtakes the calls made before: the other ranks wait for the step, and copies in flight may wait for the GPU.
  table_->loop_.post([*this, cause, slot] {
    Task released = [slot] { slot->complete({}); };
    if (HostStagedStream* const calls = table_->staged(id_)) {
      released = calls->give_up(cause, std::move(released));
    }
    GradientStream* const s = table_->engine_.stream(id_);
    if (s == nullptr || s->joined()) {
      released();
    } else {
      s->abort(cause, std::move(released));
    }
  });
  return table_->waiter_.wait_out(*slot);
}

Status StreamHandle::close() const {
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard lock(table_->mutex_);
    const auto it = table_->entries_.find(id_);
    if (it == table_->entries_.end() || std::exchange(it->second->closing, true)) {
      return not_open();
    }
    entry = it->second;
  }
  auto slot = std::make_shared<Slot>();
  table_->loop_.post([*this, slot, name = entry->name] {
    const auto answer = std::make_shared<Status>();
    Task released = [slot, answer] { slot->complete(*answer); };
    if (HostStagedStream* const calls = table_->staged(id_)) {
      released = calls->give_up({Code::kAborted, "stream '" + name + "' was closed"}, std::move(released));
    }
    table_->engine_.close_stream(id_, [*this, answer, released = std::move(released)](Status status) mutable {
      table_->staged_.erase(id_);
      *answer = std::move(status);
      released();
    });
  });
  Status status = table_->waiter_.wait_out(*slot);
  {
    const std::lock_guard lock(table_->mutex_);
    table_->entries_.erase(id_);
  }
  table_->call_done(*entry);
  return status;
}

Status StreamHandle::on_loop(const std::function<void(GradientStream&, Done)>& ask) const {
  if (!table_->find(id_)) {
    return not_open();
  }
  auto slot = std::make_shared<Slot>();
  table_->loop_.post([*this, &ask, slot] {
    in_turn(true, [*this, &ask, slot](const Status& given_up) {
      GradientStream* const s = table_->engine_.stream(id_);
      if (!given_up.ok() || s == nullptr || s->joined()) {
        slot->complete(!given_up.ok() ? given_up : s == nullptr ? not_open() : joined());
        return;
      }
      ask(*s, [slot](Status status) { slot->complete(std::move(status)); });
    });
  });
  return table_->waiter_.wait_out(*slot);
}

Status StreamHandle::residual(int index, std::span<float> out) const {
  return on_loop([&](const GradientStream& s, Done done) { s.residual(index, out, std::move(done)); });
}

Status StreamHandle::set_residual(int index, std::span<const float> in) const {
  return on_loop([&](GradientStream& s, Done done) { done(s.set_residual(index, in)); });
}

Status StreamHandle::drain_residuals(std::span<float> out) const {
  return on_loop([&](GradientStream& s, Done done) { done(s.drain_residuals(out)); });
}

Result<std::vector<std::byte>> StreamHandle::codec_state(int index) const {
  std::vector<std::byte> bytes;
  SRT_TRY(on_loop([&](const GradientStream& s, Done done) { done(s.codec_state(index, bytes)); }));
  return bytes;
}

Status StreamHandle::load_codec_state(int index, ConstBytes in) const {
  return on_loop([&](GradientStream& s, Done done) { done(s.load_codec_state(index, in)); });
}

Status StreamHandle::report_loss(double loss) const {
  if (!table_->find(id_)) {
    return not_open();
  }
  table_->loop_.post([*this, loss] {
    if (GradientStream* s = table_->engine_.stream(id_)) {
      s->report_loss(loss);
    }
  });
  return {};
}

Result<std::string> StreamHandle::tensors_json() const {
  std::string text;
  SRT_TRY(on_loop([&text](const GradientStream& s, Done done) {
    s.tensors_json([&text, done = std::move(done)](Result<std::string> json) mutable {
      const Status status = json.status();
      text = json ? *std::move(json) : std::string();
      done(status);
    });
  }));
  return text;
}

}  // namespace sirtaki::engine
