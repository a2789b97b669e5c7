#include "runtime/engine/session/stream_table.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "runtime/base/check.h"
#include "runtime/engine/device/device_path.h"
#include "runtime/engine/device/host_staged_path.h"
#include "runtime/engine/ops/op_check.h"

namespace sirtaki::engine {
namespace {

Status not_open() {
  return invalid_argument("the stream is not open");
}

// Returns whether two calls mean to open one stream. `first_step` may have gone on meanwhile.
bool same_arguments(const StreamSpec& one, const StreamSpec& other) {
  const auto same_tensor = [](const StreamTensor& a, const StreamTensor& b) {
    return a.name == b.name && a.dims == b.dims && a.strides == b.strides && a.dtype == b.dtype && a.device == b.device;
  };
  return std::ranges::equal(one.tensors, other.tensors, same_tensor) && one.order == other.order &&
         one.reduce_op == other.reduce_op && one.prescale == other.prescale && one.postscale == other.postscale &&
         one.codec == other.codec;
}

Status joined() {
  return invalid_argument("the stream is used while this rank waits in join(); use it when join() has returned");
}

}  // namespace

std::shared_ptr<StreamTable::Entry> StreamTable::find(StreamId stream) const {
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(stream);
  return it == entries_.end() || it->second->closing ? nullptr : it->second;
}

Result<StreamId> StreamTable::open(StreamSpec spec, Duration timeout) {
  SRT_TRY(check_stream(spec, rank_, size_));
  if (static_cast<int>(spec.ranks.size()) == size_) {
    spec.ranks.clear();  // all of them, however they are named
  }
  bool all_on_device = spec.ranks.empty();
  auto entry = std::make_shared<Entry>();
  entry->name = agreed_name(spec.name, spec.ranks);
  for (const StreamTensor& tensor : spec.tensors) {
    entry->tensors.push_back(tensor.name);
    const std::int64_t numel =
        std::accumulate(tensor.dims.begin(), tensor.dims.end(), std::int64_t{1}, std::multiplies<>());
    entry->views.push_back({nullptr, numel, tensor.dtype, tensor.device});
    entry->staged = entry->staged || tensor.device.type != DeviceType::kCpu;
    all_on_device = all_on_device && tensor.device.type != DeviceType::kCpu && tensor.dtype != DType::kU16 &&
                    tensor.dtype != DType::kI16;
  }
  Opening opening;
  {
    const std::lock_guard lock(mutex_);
    auto it = openings_.find(entry->name);
    const bool same = it != openings_.end() && same_arguments(it->second.spec, spec);
    if (it != openings_.end() && !same && it->second.slot->done() && !it->second.slot->wait_for(Duration(0))->ok()) {
      openings_.erase(it);  // it has failed since, and nobody asks why
      it = openings_.end();
    }
    if (it == openings_.end()) {
      StreamSpec kept = spec;
      opening = begin_open(std::move(spec), entry, all_on_device);
      opening.spec = std::move(kept);
      openings_.emplace(entry->name, opening);
    } else if (same) {
      opening = it->second;
    } else {
      return invalid_argument("stream '" + entry->name +
                              "' is being opened already, with other tensors or options: an earlier call was "
                              "interrupted. Call again with the same arguments first");
    }
  }
  const std::optional<Status> status = waiter_.wait(*opening.slot, timeout);
  if (!status) {
    return Status(Code::kTimeout, "stream '" + entry->name +
                                      "' was not agreed in time: some rank does not open it. Create the optimizers in "
                                      "the same order on all ranks");
  }
  // An interrupted wait leaves it to the next call, also where it has come to its end meanwhile.
  if (opening.slot->done() && opening.slot->wait_for(Duration(0))->code() == status->code()) {
    const std::lock_guard lock(mutex_);
    const auto it = openings_.find(opening.entry->name);
    if (it != openings_.end() && it->second.slot == opening.slot) {
      openings_.erase(it);
      if (status->ok()) {
        entries_[*opening.id] = opening.entry;
      }
    }
  }
  SRT_TRY(*status);
  return *opening.id;
}

StreamTable::Opening StreamTable::begin_open(StreamSpec spec, std::shared_ptr<Entry> entry, bool all_on_device) {
  const auto slot = std::make_shared<Slot>();
  const auto id = std::make_shared<StreamId>();
  loop_.post([this, spec = std::move(spec), slot, id, entry, all_on_device]() mutable {
    engine_.open_stream(std::move(spec), [this, slot, id, entry, all_on_device](Result<StreamId> opened) {
      if (opened) {
        *id = *opened;
        entry->board = engine_.stream(*opened)->board();
        if (entry->staged) {
          choose_way(*opened, all_on_device, [slot](Status status) { slot->complete(std::move(status)); });
          return;
        }
      }
      slot->complete(opened.status());
    });
  });
  return {{}, std::move(entry), slot, id};
}

void StreamTable::choose_way(StreamId stream, bool all_on_device, Done opened) {
  SRT_CHECK(stage_ != nullptr);
  const GradientStream::OnDevice can =
      all_on_device ? engine_.stream(stream)->on_device() : GradientStream::OnDevice::kNothing;
  const bool by_host = can == GradientStream::OnDevice::kCodesByHost;
  const bool encodes = (can == GradientStream::OnDevice::kCodes || by_host) && encodes_;
  if (!encodes ? can != GradientStream::OnDevice::kDense || plane_->host_only() : by_host && plane_->host_only()) {
    settle_way(stream, {}, false);
    opened({});
    return;
  }
  const bool dense = std::ranges::any_of(engine_.stream(stream)->plan().partitions(),
                                         [](const scheduler::Partition& part) { return !part.format.compressed(); });
  if (encodes && !dense && !by_host) {
    // Nothing of it would go over NCCL, so nobody asks for that.
    Status status = go_on_device(*engine_.stream(stream), nullptr, encodes);
    settle_way(stream, status, true);
    opened(std::move(status));
    return;
  }
  engine_.stream(stream)->block_start();
  plane_->when_decided(
      [this, stream, encodes, by_host, opened = std::move(opened)](const DeviceTransport::Answer& answer) mutable {
        GradientStream* const s = engine_.stream(stream);
        const bool direct = s != nullptr && answer && (*answer != nullptr || (encodes && !by_host));
        Status status = answer.status();
        if (direct) {
          status = go_on_device(*s, *answer, encodes);
        } else if (s != nullptr) {
          s->set_path(nullptr, nullptr);
        }
        settle_way(stream, status, direct);
        opened(std::move(status));
      });
}

void StreamTable::settle_way(StreamId stream, const Status& status, bool on_device) {
  if (status.ok()) {
    staged_[stream] = std::make_shared<HostStagedStream>(*stage_, on_device ? plane_ : nullptr, [this, stream] {
      const GradientStream* const s = engine_.stream(stream);
      return s != nullptr && s->uses_device_memory();
    });
  } else if (engine_.stream(stream) != nullptr) {
    engine_.close_stream(stream, [](const Status& /*closed*/) {});
  }
}

Status StreamTable::go_on_device(GradientStream& stream, net::DeviceCollectives* nccl, bool encodes) {
  if (const Status open = plane_->open_copies(); !open.ok()) {
    return stage_->fail(open);
  }
  std::unique_ptr<DeviceCompressor> codes;
  if (encodes) {
    auto made = DeviceCompressor::create(*plane_, nccl, stream.plan().tensors());
    if (!made) {
      return stage_->fail(made.status());
    }
    codes = std::move(*made);
  }
  std::unique_ptr<DensePath> path;
  if (nccl != nullptr) {
    path = std::make_unique<DevicePath>(*plane_, *nccl);
  } else {
    path = std::make_unique<HostStagedPath>(*plane_, *host_);
  }
  stream.set_path(std::move(path), std::move(codes));
  return {};
}

Status StreamTable::check(const Entry& entry, int index, const TensorView& tensor) const {
  if (index < 0 || index >= static_cast<int>(entry.tensors.size())) {
    return invalid_argument("stream '" + entry.name + "' has no tensor number " + std::to_string(index));
  }
  const std::string& name = entry.tensors[static_cast<std::size_t>(index)];
  const Device& device = entry.views[static_cast<std::size_t>(index)].device;
  if (tensor.device != device) {
    return {Code::kInvalidArgument,
            "tensor '" + name + "' of stream '" + entry.name + "' is on " + device_name(tensor.device) + " on rank " +
                std::to_string(rank_) + " but was registered on " + device_name(device) +
                "; create the optimizer after the model has moved",
            {rank_, name}};
  }
  if (tensor.numel != 0 && tensor.data == nullptr) {
    return {Code::kInvalidArgument,
            "tensor '" + name + "' of stream '" + entry.name + "' has no memory on rank " + std::to_string(rank_),
            {rank_, name}};
  }
  if (device.type != DeviceType::kCpu &&
      reinterpret_cast<std::uintptr_t>(tensor.data) % dtype_size(tensor.dtype) != 0) {
    return {Code::kInvalidArgument,
            "tensor '" + name + "' of stream '" + entry.name + "' begins in the middle of an element on rank " +
                std::to_string(rank_) + "; a GPU reads whole ones",
            {rank_, name}};
  }
  return {};
}

HostStagedStream* StreamTable::staged(StreamId stream) const {
  const auto it = staged_.find(stream);
  return it == staged_.end() ? nullptr : it->second.get();
}

template <class Turn>
void StreamTable::in_turn(bool is_staged, StreamId stream, Turn turn) const {
  if (HostStagedStream* const calls = is_staged ? staged(stream) : nullptr) {
    calls->call(std::move(turn));
  } else {
    turn(Status());
  }
}

Status StreamTable::ready(StreamId stream, int index, TensorView tensor, bool absent, void* cuda_stream) {
  const auto entry = find(stream);
  if (!entry) {
    return not_open();
  }
  SRT_TRY(check(*entry, index, tensor));
  // A wrong shape is told to all ranks by the engine. What is on a GPU is ready when it is here.
  const auto hand_over = [this, stream, index, absent](const TensorView& view, TimePoint at) {
    GradientStream* const s = engine_.stream(stream);
    const bool takes = s != nullptr && !s->joined();
    if (takes) {
      s->ready(index, view, absent, at);
    }
    return takes;
  };
  if (tensor.device.type == DeviceType::kCpu) {
    loop_.post([this, is_staged = entry->staged, stream, tensor, hand_over, at = loop_.now()] {
      in_turn(is_staged, stream, [hand_over, tensor, at](const Status& given_up) {
        if (given_up.ok()) {
          hand_over(tensor, at);
        }
      });
    });
    return {};
  }
  // One of another size is refused without a look at its memory.
  const TensorView& agreed = entry->views[static_cast<std::size_t>(index)];
  const bool reads = !absent && tensor.numel == agreed.numel && tensor.dtype == agreed.dtype;
  HostStagedStream::Source source{tensor, {cuda_stream}, stage_->mark({cuda_stream}), reads};
  loop_.post([this, stream, index, source = std::move(source), hand_over]() mutable {
    if (HostStagedStream* const calls = staged(stream)) {
      calls->ready(index, std::move(source),
                   [this, hand_over](const TensorView& view) { return hand_over(view, loop_.now()); });
    }
  });
  return {};
}

Status StreamTable::finish(StreamId stream) {
  const auto entry = find(stream);
  if (!entry) {
    return not_open();
  }
  const TimePoint at = loop_.now();
  loop_.post([this, is_staged = entry->staged, stream, at, mark = entry->board->finish(at)] {
    in_turn(is_staged, stream, [this, stream, at, mark](const Status& given_up) {
      if (GradientStream* s = engine_.stream(stream); given_up.ok() && s != nullptr && !s->joined()) {
        s->finish(mark, at);
      }
    });
  });
  return {};
}

void StreamTable::begin_wait(StreamId stream, const std::shared_ptr<Entry>& entry) {
  entry->waiting = std::make_shared<Slot>();
  loop_.post([this, stream, entry, waiting = entry->waiting] {
    in_turn(entry->staged, stream, [this, stream, entry, waiting](const Status& given_up) {
      if (!given_up.ok()) {
        end_wait(*entry, waiting, given_up);
        return;
      }
      wait_on_loop(entry->staged, stream, [this, entry, waiting](Status status) {
        waiting->complete(std::move(status));
        call_done(*entry);
      });
    });
  });
}

// Who was to be told waits now, and gets this; any other wait that comes is for the next step.
void StreamTable::end_wait(Entry& entry, const std::shared_ptr<Slot>& waiting, const Status& cause) {
  {
    const std::lock_guard lock(mutex_);
    if (entry.waiting == waiting && !entry.on_done) {
      entry.waiting.reset();
    }
  }
  waiting->complete(cause);
  call_done(entry);
}

void StreamTable::wait_on_loop(bool is_staged, StreamId stream, Done complete) const {
  GradientStream* const s = engine_.stream(stream);
  if (s == nullptr || s->joined()) {
    complete(s == nullptr ? not_open() : joined());
    return;
  }
  HostStagedStream* const calls = is_staged ? staged(stream) : nullptr;
  s->wait(calls == nullptr ? std::move(complete) : calls->at_end(std::move(complete)));
}

void StreamTable::after_calls(Task then) const {
  const auto left = std::make_shared<std::size_t>(staged_.size() + 1);
  const auto last = std::make_shared<Task>(std::move(then));
  const auto one_less = [left, last](const Status& /*given_up*/) {
    if (--*left == 0) {
      (*last)();
    }
  };
  for (const auto& [id, calls] : staged_) {
    calls->call(one_less);
  }
  one_less({});
}

void StreamTable::call_done(Entry& entry) {
  Task done;
  {
    const std::lock_guard lock(mutex_);
    done = std::move(entry.on_done);
  }
  if (done) {
    done();
  }
}

Status StreamTable::on_done(StreamId stream, Task done) {
  const std::lock_guard lock(mutex_);
  if (ended_) {
    return {Code::kShutdown, "the session has ended"};
  }
  const auto it = entries_.find(stream);
  if (it == entries_.end()) {
    return not_open();
  }
  // One that is being closed as well: the loop may still work on its memory.
  const std::shared_ptr<Entry>& entry = it->second;
  if (entry->waiting) {
    return invalid_argument("stream '" + entry->name + "': its step is waited for already");
  }
  entry->on_done = std::move(done);
  begin_wait(stream, entry);
  return {};
}

void StreamTable::end() {
  std::vector<std::shared_ptr<Entry>> entries;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    for (const auto& [id, entry] : entries_) {
      entries.push_back(entry);
    }
  }
  for (const auto& entry : entries) {
    call_done(*entry);
  }
}

std::optional<Status> StreamTable::wait(StreamId stream, Duration timeout) {
  const auto entry = find(stream);
  if (!entry) {
    return not_open();
  }
  std::shared_ptr<Slot> slot;
  {
    const std::lock_guard lock(mutex_);
    if (!entry->waiting) {
      begin_wait(stream, entry);
    }
    slot = entry->waiting;
  }
  std::optional<Status> status = waiter_.wait(*slot, timeout);
  if (status && slot->done()) {
    const std::lock_guard lock(mutex_);
    if (entry->waiting == slot) {
      entry->waiting.reset();
    }
  }
  return status;
}

std::optional<Status> StreamTable::wait_tensors(StreamId stream, std::span<const int> tensors, Duration timeout) {
  const auto entry = find(stream);
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
  const TimePoint begin = loop_.now();
  entry->board->need(tensors, begin);
  std::optional<Status> status = Status();
  if (entry->staged || !entry->board->reduced(tensors)) {
    status = sleep_until_reduced(stream, tensors, timeout);
    entry->board->slept(loop_.now() - begin);
  }
  entry->waits_for_tensors = false;
  return status;
}

std::optional<Status> StreamTable::sleep_until_reduced(StreamId stream, std::span<const int> tensors,
                                                       Duration timeout) {
  auto slot = std::make_shared<Slot>();
  loop_.post([this, stream, slot, tensors = std::vector<int>(tensors.begin(), tensors.end())]() mutable {
    in_turn(true, stream, [this, stream, slot, tensors = std::move(tensors)](const Status& given_up) mutable {
      if (!given_up.ok()) {
        slot->complete(given_up);
        return;
      }
      GradientStream* const s = engine_.stream(stream);
      if (s == nullptr || s->joined()) {
        slot->complete(s == nullptr ? not_open() : joined());
        return;
      }
      Done done = [slot](Status status) { slot->complete(std::move(status)); };
      if (HostStagedStream* const calls = staged(stream)) {
        done = calls->at_end_of(tensors, std::move(done));
      }
      s->wait_tensors(std::move(tensors), std::move(done));
    });
  });
  return waiter_.wait(*slot, timeout);
}

Result<Duration> StreamTable::lasted(StreamId stream) const {
  const auto entry = find(stream);
  if (!entry) {
    return not_open();
  }
  return entry->board->lasted();
}

Result<std::vector<std::uint8_t>> StreamTable::used(StreamId stream) const {
  const auto entry = find(stream);
  if (!entry) {
    return not_open();
  }
  std::vector<std::uint8_t> used(entry->tensors.size());
  for (std::size_t i = 0; i < used.size(); ++i) {
    const ResultKind kind = entry->board->kind(static_cast<int>(i));
    used[i] = kind.used ? kind.corrected ? kUsedCorrected : kUsed : std::uint8_t{0};
  }
  return used;
}

Status StreamTable::abort(StreamId stream, std::string why) {
  if (!find(stream)) {
    return not_open();
  }
  auto slot = std::make_shared<Slot>();
  const Status cause(Code::kAborted, "rank " + std::to_string(rank_) + " gave the step up: " + std::move(why),
                     {rank_, ""});
  // At once: others wait for the step, and what is fetched may wait for the GPU.
  loop_.post([this, stream, cause, slot] {
    Task released = [slot] { slot->complete({}); };
    if (HostStagedStream* const calls = staged(stream)) {
      released = calls->give_up(cause, std::move(released));
    }
    GradientStream* const s = engine_.stream(stream);
    if (s == nullptr || s->joined()) {
      released();
    } else {
      s->abort(cause, std::move(released));
    }
  });
  return waiter_.wait_out(*slot);
}

Status StreamTable::close(StreamId stream) {
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard lock(mutex_);
    const auto it = entries_.find(stream);
    if (it == entries_.end() || std::exchange(it->second->closing, true)) {
      return not_open();
    }
    entry = it->second;
  }
  auto slot = std::make_shared<Slot>();
  loop_.post([this, stream, slot, name = entry->name] {
    const auto answer = std::make_shared<Status>();
    Task released = [slot, answer] { slot->complete(*answer); };
    if (HostStagedStream* const calls = staged(stream)) {
      released = calls->give_up({Code::kAborted, "stream '" + name + "' was closed"}, std::move(released));
    }
    engine_.close_stream(stream, [this, stream, answer, released = std::move(released)](Status status) mutable {
      staged_.erase(stream);
      *answer = std::move(status);
      released();
    });
  });
  Status status = waiter_.wait_out(*slot);
  {
    const std::lock_guard lock(mutex_);
    entries_.erase(stream);
  }
  call_done(*entry);
  return status;
}

Status StreamTable::on_loop(StreamId stream, const std::function<void(GradientStream&, Done)>& ask) const {
  if (!find(stream)) {
    return not_open();
  }
  auto slot = std::make_shared<Slot>();
  loop_.post([this, stream, &ask, slot] {
    in_turn(true, stream, [this, stream, &ask, slot](const Status& given_up) {
      GradientStream* const s = engine_.stream(stream);
      if (!given_up.ok() || s == nullptr || s->joined()) {
        slot->complete(!given_up.ok() ? given_up : s == nullptr ? not_open() : joined());
        return;
      }
      ask(*s, [slot](Status status) { slot->complete(std::move(status)); });
    });
  });
  return waiter_.wait_out(*slot);
}

Status StreamTable::residual(StreamId stream, int index, std::span<float> out) const {
  return on_loop(stream, [&](const GradientStream& s, Done done) { s.residual(index, out, std::move(done)); });
}

Status StreamTable::set_residual(StreamId stream, int index, std::span<const float> in) {
  return on_loop(stream, [&](GradientStream& s, Done done) { done(s.set_residual(index, in)); });
}

Status StreamTable::take_residuals(StreamId stream, std::span<float> out) {
  return on_loop(stream, [&](GradientStream& s, Done done) { done(s.drain_residuals(out)); });
}

Result<std::vector<std::byte>> StreamTable::remembered(StreamId stream, int index) const {
  std::vector<std::byte> bytes;
  SRT_TRY(on_loop(stream, [&](const GradientStream& s, Done done) { done(s.codec_state(index, bytes)); }));
  return bytes;
}

Status StreamTable::recall(StreamId stream, int index, ConstBytes in) {
  return on_loop(stream, [&](GradientStream& s, Done done) { done(s.load_codec_state(index, in)); });
}

Status StreamTable::report_loss(StreamId stream, double loss) const {
  if (!find(stream)) {
    return not_open();
  }
  loop_.post([this, stream, loss] {
    if (GradientStream* s = engine_.stream(stream)) {
      s->report_loss(loss);
    }
  });
  return {};
}

Result<std::string> StreamTable::tensors_json(StreamId stream) const {
  std::string text;
  SRT_TRY(on_loop(stream, [&text](const GradientStream& s, Done done) {
    s.tensors_json([&text, done = std::move(done)](Result<std::string> json) mutable {
      const Status status = json.status();
      text = json ? *std::move(json) : std::string();
      done(status);
    });
  }));
  return text;
}

}  // namespace sirtaki::engine
