#include "tests/conformance/fake_nccl.h"

#include <algorithm>
#include <cstring>
#include <mutex>
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

// Adds elements [first, first + count) of all inputs into `out`.
template <class Inputs>
void add_up(const Inputs& inputs, std::size_t first, std::size_t count, Element element, Reduction op, void* out) {
  std::vector<const std::byte*> sources;
  for (const auto& [rank, memory] : inputs) {
    sources.push_back(memory.data() + size_of(first, element));
  }
  const auto n = static_cast<std::int64_t>(count);
  if (op == Reduction::kAverage) {
    kernels::ref::average(dtype_of(element), sources, static_cast<std::byte*>(out), n,
                          static_cast<double>(sources.size()));
  } else {
    kernels::ref::reduce(op_of(op), dtype_of(element), sources, static_cast<std::byte*>(out), n);
  }
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

void FakeNccl::break_down(int rank, std::uint64_t calls) {
  const Lock lock(the_mutex);
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

Outcome FakeNccl::leave(CommHandle handle, bool abort) {
  const std::unique_ptr<Comm> gone(&comm(handle));
  const Lock lock(the_mutex);
  *gone->aborted = abort;
  return Outcome::kSuccess;
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
    *handle = reinterpret_cast<CommHandle>(made.release());
    return Outcome::kInProgress;
  };
  api_.comm_get_async_error = [](CommHandle handle, Outcome* error) {
    const Lock lock(the_mutex);
    const World& world = *comm(handle).world;
    if (comm(handle).rank == current().broken_rank_ && comm(handle).calls >= current().broken_after_) {
      *error = Outcome::kSystemError;
      return Outcome::kSuccess;
    }
    const Outcome joined = current().on_one_gpu_ ? Outcome::kInvalidUsage : Outcome::kSuccess;
    *error = world.joined == world.size ? joined : Outcome::kInProgress;
    return Outcome::kSuccess;
  };
  api_.comm_finalize = [](CommHandle) { return Outcome::kSuccess; };
  api_.comm_destroy = [](CommHandle handle) { return leave(handle, false); };
  api_.comm_abort = [](CommHandle handle) { return leave(handle, true); };
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

Outcome FakeNccl::collective(CommHandle handle, void* stream, const void* in, std::size_t bytes, Take take) {
  Comm& self = comm(handle);
  const Lock lock(the_mutex);
  auto* const round = &self.world->rounds[self.calls++];
  const auto* const from = static_cast<const std::byte*>(in);
  Step step;
  step.stream = stream;
  step.hand_in = [round, world = self.world, rank = self.rank, from, bytes] {
    const Lock handing_in(the_mutex);
    round->inputs[rank] = from == nullptr ? Memory() : Memory(from, from + bytes);
  };
  step.can = [round, world = self.world, aborted = self.aborted] {
    const Lock looking(the_mutex);
    return *aborted || round->inputs.size() == static_cast<std::size_t>(world->size);
  };
  step.take = [round, world = self.world, take = std::move(take), aborted = self.aborted] {
    const Lock taking(the_mutex);
    if (!*aborted) {
      take(round->inputs);
    }
  };
  group().push_back(std::move(step));
  return Outcome::kInProgress;
}

// Calls of a group run side by side: none waits for the end of another.
Outcome FakeNccl::end_group() {
  const std::vector<Step> steps = std::exchange(group(), {});
  for (const Step& step : steps) {
    if (step.hand_in) {
      FakeDevice::queue(step.stream, step.hand_in);
    }
  }
  for (const Step& step : steps) {
    if (step.take) {
      FakeDevice::queue(step.stream, step.take, step.can);
    }
  }
  return Outcome::kSuccess;
}

void FakeNccl::fill_calls() {
  api_.all_reduce = [](const void* in, void* out, std::size_t count, Element element, Reduction op, CommHandle handle,
                       NativeStream stream) {
    return collective(handle, stream, in, size_of(count, element),
                      [=](const auto& inputs) { add_up(inputs, 0, count, element, op, out); });
  };
  api_.reduce = [](const void* in, void* out, std::size_t count, Element element, Reduction op, int root,
                   CommHandle handle, NativeStream stream) {
    const bool here = comm(handle).rank == root;
    return collective(handle, stream, in, size_of(count, element), [=](const auto& inputs) {
      if (here) {
        add_up(inputs, 0, count, element, op, out);
      }
    });
  };
  api_.broadcast = [](const void* in, void* out, std::size_t count, Element element, int root, CommHandle handle,
                      NativeStream stream) {
    const bool here = comm(handle).rank == root;
    return collective(handle, stream, here ? in : nullptr, size_of(count, element),
                      [=](const auto& inputs) { std::memcpy(out, inputs.at(root).data(), size_of(count, element)); });
  };
  api_.all_gather = [](const void* in, void* out, std::size_t count, Element element, CommHandle handle,
                       NativeStream stream) {
    const std::size_t bytes = size_of(count, element);
    return collective(handle, stream, in, bytes, [=](const auto& inputs) {
      for (const auto& [rank, memory] : inputs) {
        std::memcpy(static_cast<std::byte*>(out) + static_cast<std::size_t>(rank) * bytes, memory.data(), bytes);
      }
    });
  };
  api_.reduce_scatter = [](const void* in, void* out, std::size_t count, Element element, Reduction op,
                           CommHandle handle, NativeStream stream) {
    const auto rank = static_cast<std::size_t>(comm(handle).rank);
    const auto ranks = static_cast<std::size_t>(comm(handle).world->size);
    return collective(handle, stream, in, size_of(count * ranks, element),
                      [=](const auto& inputs) { add_up(inputs, count * rank, count, element, op, out); });
  };
  api_.send = [](const void* data, std::size_t count, Element element, int peer, CommHandle handle,
                 NativeStream stream) {
    const auto* const from = static_cast<const std::byte*>(data);
    Step step;
    step.stream = stream;
    step.hand_in = [world = comm(handle).world, route = std::pair(comm(handle).rank, peer), from,
                    bytes = size_of(count, element)] {
      const Lock handing_in(the_mutex);
      world->mail[route].emplace_back(from, from + bytes);
    };
    group().push_back(std::move(step));
    return Outcome::kInProgress;
  };
  api_.recv = [](void* data, std::size_t count, Element element, int peer, CommHandle handle, NativeStream stream) {
    Step step;
    step.stream = stream;
    step.can = [world = comm(handle).world, route = std::pair(peer, comm(handle).rank),
                aborted = comm(handle).aborted] {
      const Lock looking(the_mutex);
      return *aborted || !world->mail[route].empty();
    };
    step.take = [world = comm(handle).world, route = std::pair(peer, comm(handle).rank), data,
                 bytes = size_of(count, element), aborted = comm(handle).aborted] {
      const Lock taking(the_mutex);
      if (!*aborted) {
        const Memory mail = std::move(world->mail[route].front());
        world->mail[route].pop_front();
        std::memcpy(data, mail.data(), std::min(bytes, mail.size()));
      }
    };
    group().push_back(std::move(step));
    return Outcome::kInProgress;
  };
}

}  // namespace sirtaki::net::testing
