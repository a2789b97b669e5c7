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

// Returns whether two calls mean to open one stream. `first_step` may have gone on meanwhile.
bool same_arguments(const StreamSpec& one, const StreamSpec& other) {
  const auto same_tensor = [](const StreamTensor& a, const StreamTensor& b) {
    return a.name == b.name && a.dims == b.dims && a.strides == b.strides && a.dtype == b.dtype && a.device == b.device;
  };
  return std::ranges::equal(one.tensors, other.tensors, same_tensor) && one.order == other.order &&
         one.reduce_op == other.reduce_op && one.prescale == other.prescale && one.postscale == other.postscale &&
         one.codec == other.codec;
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
