#include "runtime/engine/session/stream_table.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "runtime/base/check.h"
#include "runtime/engine/ops/op_check.h"

namespace sirtaki::engine {
namespace {

// Returns whether two calls mean to open one stream. `first_step` may have gone on meanwhile.
bool same_arguments(const StreamSpec& one, const StreamSpec& other) {
  const auto same_tensor = [](const StreamTensor& a, const StreamTensor& b) {
    return a.name == b.name && a.dims == b.dims && a.strides == b.strides && a.dtype == b.dtype && a.device == b.device;
  };
  return std::ranges::equal(one.tensors, other.tensors, same_tensor) && one.order == other.order &&
         one.reduce_op == other.reduce_op && one.prescale == other.prescale && one.postscale == other.postscale &&
         one.codec == other.codec;
}

DeviceSupport support_of(const GradientStream& stream) {
  using OnDevice = GradientStream::OnDevice;
  const OnDevice can = stream.on_device();
  const bool by_host = can == OnDevice::kCodesByHost;
  return {can == OnDevice::kDense, by_host || can == OnDevice::kCodes, by_host};
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
      openings_.erase(it);  // it has failed since, and no call waits for its error
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
  // After an interrupted wait the opening stays for the next call, even if it has completed meanwhile.
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
          select_path(*opened, all_on_device, [slot](Status status) { slot->complete(std::move(status)); });
          return;
        }
      }
      slot->complete(opened.status());
    });
  });
  return {{}, std::move(entry), slot, id};
}

void StreamTable::select_path(StreamId stream, bool all_on_device, Done opened) {
  SRT_CHECK(selector_.has_value());
  GradientStream& fresh = *engine_.stream(stream);
  const DeviceSupport support = all_on_device ? support_of(fresh) : DeviceSupport();
  fresh.block_start();
  if (!selector_->needs_decision(support, fresh.plan())) {
    take_path(stream, support, nullptr, std::move(opened));
    return;
  }
  transport_->when_decided(
      [this, stream, support, opened = std::move(opened)](const DeviceTransport::Answer& answer) mutable {
        if (answer) {
          take_path(stream, support, *answer, std::move(opened));
          return;
        }
        finish_open(stream, answer.status(), false);
        opened(answer.status());
      });
}

// The stream may be closed while the ranks decide and agree.
void StreamTable::take_path(StreamId stream, const DeviceSupport& support, net::DeviceCollectives* nccl, Done opened) {
  auto set = [this, stream, opened = std::move(opened)](Result<SelectedPath> path) mutable {
    const bool on_device = path && path->dense;
    GradientStream* const s = engine_.stream(stream);
    if (s != nullptr && path) {
      s->set_path(std::move(path->dense), std::move(path->compressor));
    }
    finish_open(stream, path.status(), on_device);
    opened(path.status());
  };
  if (const GradientStream* const s = engine_.stream(stream)) {
    selector_->select({stream, s->spec().name, support, s->plan()}, nccl, std::move(set));
  } else {
    set(SelectedPath());
  }
}

void StreamTable::finish_open(StreamId stream, const Status& status, bool on_device) {
  if (status.ok()) {
    const auto calls = std::make_shared<HostStagedStream>(*stage_, on_device ? transport_ : nullptr, [this, stream] {
      const GradientStream* const s = engine_.stream(stream);
      return s != nullptr && s->uses_device_memory();
    });
    staged_[stream] = calls;
    if (GradientStream* const s = engine_.stream(stream)) {
      s->on_result([calls](int index) { calls->result(index); });
    }
  } else if (engine_.stream(stream) != nullptr) {
    engine_.close_stream(stream, [](const Status& /*closed*/) {});
  }
}

HostStagedStream* StreamTable::staged(StreamId stream) const {
  const auto it = staged_.find(stream);
  return it == staged_.end() ? nullptr : it->second.get();
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

}  // namespace sirtaki::engine
