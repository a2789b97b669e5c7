#include "tests/conformance/fake_nccl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/reduce/reduce.h"
#include "tests/unit/device/fake_device.h"

namespace sirtaki::net::testing {
namespace {

using device::testing::FakeDevice;
using nccl::CommHandle;
using nccl::Element;
using nccl::NativeStream;
using nccl::Outcome;
using nccl::Reduction;

FakeNccl* the_fake = nullptr;

// Guards the shared state of communicators. Never held while work is given to a device, because the work locks it.
std::mutex the_mutex;
using Lock = std::lock_guard<std::mutex>;
std::condition_variable kernel_ended;

DType dtype_of(Element element) {
  switch (element) {
    case Element::kI8:
      return DType::kI8;
    case Element::kU8:
      return DType::kU8;
    case Element::kI32:
      return DType::kI32;
    case Element::kI64:
      return DType::kI64;
    case Element::kF16:
      return DType::kF16;
    case Element::kF32:
      return DType::kF32;
    case Element::kF64:
      return DType::kF64;
    case Element::kBF16:
      return DType::kBF16;
  }
  throw std::logic_error("unknown element");
}

std::size_t size_of(std::size_t count, Element element) {
  return count * dtype_size(dtype_of(element));
}

ReduceOp op_of(Reduction op) {
  switch (op) {
    case Reduction::kSum:
      return ReduceOp::kSum;
    case Reduction::kProduct:
      return ReduceOp::kProduct;
    case Reduction::kMax:
      return ReduceOp::kMax;
    case Reduction::kMin:
      return ReduceOp::kMin;
    case Reduction::kAverage:
      return ReduceOp::kAverage;
  }
  throw std::logic_error("unknown reduction");
}

// Multiplies by the inverse of the number of ranks before it adds, as NCCL does.
template <class Number>
void add_parts(std::span<const std::byte* const> sources, void* out, std::size_t count) {
  const auto factor = static_cast<Number>(1.0 / static_cast<double>(sources.size()));
  for (std::size_t i = 0; i < count; ++i) {
    Number sum = 0;
    for (const std::byte* const source : sources) {
      Number value = 0;
      std::memcpy(&value, source + i * sizeof value, sizeof value);
      sum += value * factor;
    }
    std::memcpy(static_cast<std::byte*>(out) + i * sizeof sum, &sum, sizeof sum);
  }
}

// Adds elements [first, first + count) of all inputs into `out`.
template <class Inputs>
void add_up(const Inputs& inputs, std::size_t first, std::size_t count, Element element, Reduction op, void* out) {
  std::vector<const std::byte*> sources;
  for (const auto& [rank, memory] : inputs) {
    sources.push_back(memory.data() + size_of(first, element));
  }
  const auto n = static_cast<std::int64_t>(count);
  if (op != Reduction::kAverage) {
    kernels::ref::reduce(op_of(op), dtype_of(element), sources, static_cast<std::byte*>(out), n);
  } else if (element == Element::kF32) {
    add_parts<float>(sources, out, count);
  } else if (element == Element::kF64) {
    add_parts<double>(sources, out, count);
  } else {
    kernels::ref::average(dtype_of(element), sources, static_cast<std::byte*>(out), n,
                          static_cast<double>(sources.size()));
  }
}

std::string text_of(const char* name, std::size_t count, Element element, int more) {
  return std::string(name) + " " + std::to_string(count) + " " + std::to_string(static_cast<int>(element)) + " " +
         std::to_string(more) + "; ";
}

}  // namespace

FakeNccl::FakeNccl() {
  if (the_fake != nullptr) {
    throw std::logic_error("only one FakeNccl may exist at a time");
  }
  the_fake = this;
  fill_life();
  fill_calls();
}

FakeNccl::~FakeNccl() {
  the_fake = nullptr;
}

FakeNccl& FakeNccl::current() {
  return *the_fake;
}

std::vector<FakeNccl::Step>& FakeNccl::group() {
  static thread_local std::vector<Step> steps;
  return steps;
}

void FakeNccl::break_down(int rank, std::uint64_t calls, Outcome outcome) {
  const Lock lock(the_mutex);
  broken_with_ = outcome;
  broken_rank_ = rank;
  broken_after_ = calls;
}

void FakeNccl::put_on_one_gpu() {
  const Lock lock(the_mutex);
  on_one_gpu_ = true;
}

FakeNccl::Comm& FakeNccl::comm(CommHandle handle) {
  return *reinterpret_cast<Comm*>(handle);
}

void FakeNccl::launch_at_poll(int poll) {
  const Lock lock(the_mutex);
  launch_poll_ = poll;
}

int FakeNccl::groups() const {
  const Lock lock(the_mutex);
  return groups_;
}

int FakeNccl::aborts() const {
  const Lock lock(the_mutex);
  return aborts_;
}

int FakeNccl::waiting_aborts() const {
  const Lock lock(the_mutex);
  return waiting_aborts_;
}

void FakeNccl::give_up() {
  const Lock lock(the_mutex);
  gave_up_ = true;
}

Outcome FakeNccl::abort(CommHandle handle) {
  const std::unique_ptr<Comm> gone(&comm(handle));
  const std::shared_ptr<Fate> fate = gone->fate;
  std::unique_lock lock(the_mutex);
  ++aborts_;
  fate->aborted = true;
  if (gone->place != nullptr) {
    std::atomic_ref(*gone->place).store(handle, std::memory_order_release);
  }
  ++waiting_aborts_;
  while (fate->on_stream > 0 && !gave_up_) {
    lock.unlock();
    FakeDevice::of(fate->stream).pass_time();
    lock.lock();
    kernel_ended.wait_for(lock, std::chrono::milliseconds(1), [&] { return fate->on_stream == 0; });
  }
  --waiting_aborts_;
  return Outcome::kSuccess;
}

Outcome FakeNccl::poll(Comm& comm, Outcome* error) {
  std::unique_lock lock(the_mutex);
  const World& world = *comm.world;
  if (world.unequal || (comm.rank == broken_rank_ && comm.calls >= broken_after_)) {
    *error = world.unequal ? Outcome::kSystemError : broken_with_;
    return Outcome::kSuccess;
  }
  if (world.joined < world.size || (!comm.launching.empty() && --comm.polls_left > 0)) {
    *error = Outcome::kInProgress;
    return Outcome::kSuccess;
  }
  if (CommHandle* const place = std::exchange(comm.place, nullptr)) {
    std::atomic_ref(*place).store(reinterpret_cast<CommHandle>(&comm), std::memory_order_release);
  }
  *error = on_one_gpu_ ? Outcome::kInvalidUsage : Outcome::kSuccess;
  std::vector<Step> steps = std::exchange(comm.launching, {});
  lock.unlock();
  if (!steps.empty()) {
    launch(comm, std::move(steps));
  }
  return Outcome::kSuccess;
}

// Calls of a group run side by side: none waits for the end of another.
void FakeNccl::launch(Comm& comm, std::vector<Step> steps) {
  const std::shared_ptr<Fate> fate = comm.fate;
  void* const stream = steps.front().stream;
  FakeDevice* const device = &FakeDevice::of(stream);
  const auto kernel = std::make_shared<const std::vector<Step>>(std::move(steps));
  {
    const Lock lock(the_mutex);
    ++fate->on_stream;
    fate->stream = stream;
  }
  const auto enter = [fate, device, kernel, residents = residents_] {
    const Lock lock(the_mutex);
    if (fate->aborted) {
      return;
    }
    (*residents)[device] = kernel.get();
    for (const Step& step : *kernel) {
      if (step.hand_in) {
        step.hand_in();
      }
    }
  };
  const auto may_enter = [fate, device, residents = residents_] {
    const Lock lock(the_mutex);
    return fate->aborted || (*residents)[device] == nullptr;
  };
  const auto end = [fate, device, kernel, residents = residents_] {
    const Lock lock(the_mutex);
    for (const Step& step : *kernel) {
      if (step.take && !fate->aborted) {
        step.take();
      }
    }
    if ((*residents)[device] == kernel.get()) {
      (*residents)[device] = nullptr;
    }
    --fate->on_stream;
    kernel_ended.notify_all();
  };
  const auto may_end = [fate, kernel] {
    const Lock lock(the_mutex);
    return fate->aborted || std::ranges::all_of(*kernel, [](const Step& step) { return !step.can || step.can(); });
  };
  FakeDevice::queue(stream, enter, may_enter);
  FakeDevice::queue(stream, end, may_end);
}

void FakeNccl::fill_life() {
  api_.get_unique_id = [](nccl::UniqueId* id) {
    const Lock lock(the_mutex);
    const int number = ++current().last_id_;
    std::memcpy(id->internal, &number, sizeof(number));
    return Outcome::kSuccess;
  };
  api_.comm_init_rank_config = [](CommHandle* handle, int size, nccl::UniqueId id, int rank, nccl::Config*) {
    int number = 0;
    std::memcpy(&number, id.internal, sizeof(number));
    const Lock lock(the_mutex);
    auto& world = current().worlds_[number];
    if (!world) {
      world = std::make_shared<World>();
      world->size = size;
    }
    ++world->joined;
    auto made = std::make_unique<Comm>();
    made->world = world;
    made->rank = rank;
    made->place = handle;
    *handle = reinterpret_cast<CommHandle>(made.release());
    return Outcome::kInProgress;
  };
  api_.comm_get_async_error = [](CommHandle handle, Outcome* error) { return current().poll(comm(handle), error); };
  api_.comm_finalize = [](CommHandle) { return Outcome::kSuccess; };
  api_.comm_destroy = [](CommHandle handle) {
    delete &comm(handle);
    return Outcome::kSuccess;
  };
  api_.comm_abort = [](CommHandle handle) { return current().abort(handle); };
  api_.get_error_string = [](Outcome outcome) {
    return outcome == Outcome::kInvalidUsage ? "invalid usage" : "an error";
  };
  api_.get_last_error = [](CommHandle) {
    const Lock lock(the_mutex);
    return current().on_one_gpu_ ? "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000" : "";
  };
  api_.group_start = [] { return Outcome::kSuccess; };
  api_.group_end = [] { return current().end_group(); };
}

Outcome FakeNccl::collective(CommHandle handle, void* stream, const std::string& text, const void* in,
                             std::size_t bytes, Take take) {
  Comm& self = comm(handle);
  const Lock lock(the_mutex);
  auto* const round = &self.world->rounds[self.calls++];
  const auto* const from = static_cast<const std::byte*>(in);
  Step step;
  step.comm = &self;
  step.stream = stream;
  step.text = text;
  step.hand_in = [round, world = self.world, rank = self.rank, from, bytes] {
    round->inputs[rank] = from == nullptr ? Memory() : Memory(from, from + bytes);
  };
  step.can = [round, world = self.world] { return round->inputs.size() == static_cast<std::size_t>(world->size); };
  step.take = [round, world = self.world, take = std::move(take)] { take(round->inputs); };
  group().push_back(std::move(step));
  return Outcome::kInProgress;
}

Outcome FakeNccl::message(CommHandle handle, void* stream, std::pair<int, int> route, const void* from, void* to,
                          std::size_t bytes) {
  Step step;
  step.comm = &comm(handle);
  step.stream = stream;
  const auto number = std::make_shared<std::size_t>(0);
  step.hand_in = [world = step.comm->world, route, number, from = static_cast<const std::byte*>(from), bytes] {
    auto& [sent, wanted] = world->mail[route];
    if (from != nullptr) {
      *number = sent.size();
      sent.emplace_back(from, from + bytes);
    } else {
      *number = wanted.size();
      wanted.push_back(bytes);
    }
    const bool met = *number < std::min(sent.size(), wanted.size());
    world->unequal = world->unequal || (met && sent[*number].size() != wanted[*number]);
  };
  step.can = [world = step.comm->world, route, number] {
    const auto& [sent, wanted] = world->mail[route];
    return !world->unequal && *number < std::min(sent.size(), wanted.size());
  };
  if (to != nullptr) {
    step.take = [world = step.comm->world, route, number, to] {
      const Memory mail = std::exchange(world->mail[route].sent[*number], {});
      std::memcpy(to, mail.data(), mail.size());
    };
  }
  group().push_back(std::move(step));
  return Outcome::kInProgress;
}

Outcome FakeNccl::end_group() {
  std::vector<Step> steps = std::exchange(group(), {});
  if (steps.empty()) {
    return Outcome::kSuccess;
  }
  const Lock lock(the_mutex);
  ++groups_;
  std::map<Comm*, std::string> texts;
  for (Step& step : steps) {
    texts[step.comm] += step.text;
    step.comm->polls_left = launch_poll_;
    step.comm->launching.push_back(std::move(step));
  }
  for (const auto& [comm, text] : texts) {
    if (text.empty()) {
      continue;  // a rank without messages has no such group
    }
    World& world = *comm->world;
    const auto [place, first] = world.groups.emplace(comm->groups++, text);
    world.unequal = world.unequal || (!first && place->second != text);
  }
  return Outcome::kInProgress;
}

void FakeNccl::fill_calls() {
  api_.all_reduce = [](const void* in, void* out, std::size_t count, Element element, Reduction op, CommHandle handle,
                       NativeStream stream) {
    return collective(handle, stream, text_of("all_reduce", count, element, static_cast<int>(op)), in,
                      size_of(count, element), [=](const auto& inputs) { add_up(inputs, 0, count, element, op, out); });
  };
  api_.reduce = [](const void* in, void* out, std::size_t count, Element element, Reduction op, int root,
                   CommHandle handle, NativeStream stream) {
    const bool here = comm(handle).rank == root;
    return collective(handle, stream, text_of("reduce", count, element, root), in, size_of(count, element),
                      [=](const auto& inputs) {
                        if (here) {
                          add_up(inputs, 0, count, element, op, out);
                        }
                      });
  };
  api_.broadcast = [](const void* in, void* out, std::size_t count, Element element, int root, CommHandle handle,
                      NativeStream stream) {
    const bool here = comm(handle).rank == root;
    return collective(handle, stream, text_of("broadcast", count, element, root), here ? in : nullptr,
                      size_of(count, element),
                      [=](const auto& inputs) { std::memcpy(out, inputs.at(root).data(), size_of(count, element)); });
  };
  api_.all_gather = [](const void* in, void* out, std::size_t count, Element element, CommHandle handle,
                       NativeStream stream) {
    const std::size_t bytes = size_of(count, element);
    return collective(handle, stream, text_of("all_gather", count, element, 0), in, bytes, [=](const auto& inputs) {
      for (const auto& [rank, memory] : inputs) {
        std::memcpy(static_cast<std::byte*>(out) + static_cast<std::size_t>(rank) * bytes, memory.data(), bytes);
      }
    });
  };
  api_.reduce_scatter = [](const void* in, void* out, std::size_t count, Element element, Reduction op,
                           CommHandle handle, NativeStream stream) {
    const auto rank = static_cast<std::size_t>(comm(handle).rank);
    const auto ranks = static_cast<std::size_t>(comm(handle).world->size);
    return collective(handle, stream, text_of("reduce_scatter", count, element, static_cast<int>(op)), in,
                      size_of(count * ranks, element),
                      [=](const auto& inputs) { add_up(inputs, count * rank, count, element, op, out); });
  };
  api_.send = [](const void* data, std::size_t count, Element element, int peer, CommHandle handle,
                 NativeStream stream) {
    return message(handle, stream, {comm(handle).rank, peer}, data, nullptr, size_of(count, element));
  };
  api_.recv = [](void* data, std::size_t count, Element element, int peer, CommHandle handle, NativeStream stream) {
    return message(handle, stream, {peer, comm(handle).rank}, nullptr, data, size_of(count, element));
  };
}

}  // namespace sirtaki::net::testing
