// A library that loads like the CUDA plug-in and like NCCL, for ranks in processes of their own: a device whose memory
// is host memory and which executes work when it is queued, and collectives over memory that the ranks share.
//
// For benchmarks/gpu/nccl_smoke.cc on machines without a GPU. The only kernels are averages of float32. SPOILED in the
// environment makes the sums wrong. Threads: one in each process.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda_kernels.h"
#include "runtime/device/cuda_calls.h"
#include "runtime/net/device/nccl/nccl_api.h"
#include "tests/device/fake_calls.h"

namespace {

using sirtaki::device::cuda::DeviceCalls;
using sirtaki::kernels::cuda::Kernels;
using sirtaki::kernels::cuda::Launch;
using namespace sirtaki::net::nccl;

constexpr DeviceCalls kCalls = sirtaki::device::fake::calls();

Launch average(const sirtaki::kernels::cuda::Reduce& args, void* /*stream*/) {
  const auto* const from = reinterpret_cast<const float*>(args.sources[0]);
  auto* const to = reinterpret_cast<float*>(args.out);
  for (std::int64_t i = 0; i < args.n; ++i) {
    to[i] = from[i] / static_cast<float>(args.divisor);
  }
  return {};
}

constexpr Kernels kernels() {
  Kernels kernels{};
  kernels.version = sirtaki::kernels::cuda::kKernelsVersion;
  kernels.load = [] { return Launch{}; };
  kernels.reduce = average;
  return kernels;
}
constexpr Kernels kKernels = kernels();

// ---- NCCL ------------------------------------------------------------------------------------

constexpr int kMostRanks = 4;
constexpr std::size_t kRoom = std::size_t{32} << 20;

// Shared memory of a communicator; its name is the id. Memory that no rank writes takes no room.
struct Shared {
  std::atomic<int> joined;
  std::atomic<std::uint64_t> turns[kMostRanks];
  std::byte data[kMostRanks][kRoom];
};

struct Message {
  int peer;
  std::size_t bytes;
};
struct Send {
  int peer;
  const void* data;
  std::size_t bytes;
};
struct Recv {
  int peer;
  void* data;
  std::size_t bytes;
};

struct Comm {
  Shared* shared;
  int rank;
  int size;
  std::uint64_t turns = 0;
  std::vector<Send> sends;  // sends of the open group
  std::vector<Recv> recvs;

  std::byte* data(int of) { return shared->data[of]; }
  // Returns when all ranks have called it equally often.
  Outcome meet() {
    ++turns;
    shared->turns[rank].store(turns);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    for (int other = 0; other < size; ++other) {
      while (shared->turns[other].load() < turns) {
        if (std::chrono::steady_clock::now() > deadline) {
          return Outcome::kRemoteError;
        }
        std::this_thread::yield();
      }
    }
    return Outcome::kSuccess;
  }
};

Comm* comm_of(CommHandle handle) {
  return reinterpret_cast<Comm*>(handle);
}
// Returns the communicator whose group is open.
Comm*& sender() {
  static Comm* the_one = nullptr;
  return the_one;
}

std::size_t size_of(Element element) {
  return element == Element::kU8 ? 1 : 4;
}

// All ranks hand in their input, then each takes its part of all inputs.
Outcome round(CommHandle handle, const void* in, std::size_t bytes, const std::function<void(Comm&)>& take) {
  Comm& comm = *comm_of(handle);
  std::memcpy(comm.data(comm.rank), in, bytes);
  if (const Outcome met = comm.meet(); met != Outcome::kSuccess) {
    return met;
  }
  take(comm);
  return comm.meet();
}

// Adds elements [first, first + count) of all ranks in float32, for an average after a multiplication.
void add_up(Comm& comm, std::size_t first, std::size_t count, Reduction op, void* out) {
  static const bool kSpoiled = std::getenv("SPOILED") != nullptr;
  auto* const to = static_cast<float*>(out);
  const float factor = op == Reduction::kAverage ? 1.0F / static_cast<float>(comm.size) : 1.0F;
  for (std::size_t i = 0; i < count; ++i) {
    float found = factor * reinterpret_cast<float*>(comm.data(0))[first + i];
    for (int rank = 1; rank < comm.size; ++rank) {
      const float next = factor * reinterpret_cast<float*>(comm.data(rank))[first + i];
      found = op == Reduction::kMax ? std::max(found, next) : found + next;
    }
    to[i] = kSpoiled ? found + 1.0F : found;
  }
}

}  // namespace

#define SRT_EXPORT extern "C" __attribute__((visibility("default")))

SRT_EXPORT const DeviceCalls* sirtaki_cuda_device() {
  return &kCalls;
}
SRT_EXPORT const Kernels* sirtaki_cuda_kernels() {
  return &kKernels;
}

SRT_EXPORT Outcome ncclGetVersion(int* version) {
  *version = 22809;
  return Outcome::kSuccess;
}
SRT_EXPORT Outcome ncclGetUniqueId(UniqueId* id) {
  static int made = 0;
  std::snprintf(id->internal, sizeof(id->internal), "/tmp/fake-nccl-%d-%d", static_cast<int>(getpid()), made++);
  const int file = open(id->internal, O_CREAT | O_RDWR | O_EXCL, 0600);
  const bool ok = file >= 0 && ftruncate(file, sizeof(Shared)) == 0;
  close(file);
  return ok ? Outcome::kSuccess : Outcome::kSystemError;
}
SRT_EXPORT Outcome ncclCommInitRankConfig(CommHandle* comm, int size, UniqueId id, int rank, Config* /*config*/) {
  const int file = open(id.internal, O_RDWR, 0600);
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED || size > kMostRanks) {
    return Outcome::kSystemError;
  }
  auto* const shared = static_cast<Shared*>(memory);
  if (shared->joined.fetch_add(1) + 1 == size) {
    unlink(id.internal);
  }
  *comm = reinterpret_cast<CommHandle>(new Comm{shared, rank, size, 0, {}, {}});
  return Outcome::kSuccess;
}
SRT_EXPORT Outcome ncclCommFinalize(CommHandle /*comm*/) {
  return Outcome::kSuccess;
}
SRT_EXPORT Outcome ncclCommDestroy(CommHandle comm) {
  munmap(comm_of(comm)->shared, sizeof(Shared));
  delete comm_of(comm);
  return Outcome::kSuccess;
}
SRT_EXPORT Outcome ncclCommAbort(CommHandle comm) {
  return ncclCommDestroy(comm);
}
SRT_EXPORT Outcome ncclCommGetAsyncError(CommHandle /*comm*/, Outcome* error) {
  *error = Outcome::kSuccess;
  return Outcome::kSuccess;
}
SRT_EXPORT const char* ncclGetErrorString(Outcome /*outcome*/) {
  return "fake";
}
SRT_EXPORT const char* ncclGetLastError(CommHandle /*comm*/) {
  return "fake";
}
SRT_EXPORT Outcome ncclGroupStart() {
  return Outcome::kSuccess;
}
SRT_EXPORT Outcome ncclGroupEnd() {
  Comm* const comm = std::exchange(sender(), nullptr);
  if (comm == nullptr) {
    return Outcome::kSuccess;
  }
  std::vector<std::byte> all;
  for (const Send& send : comm->sends) {
    const Message message{send.peer, send.bytes};
    const auto* const head = reinterpret_cast<const std::byte*>(&message);
    const auto* const data = static_cast<const std::byte*>(send.data);
    all.insert(all.end(), head, head + sizeof(message));
    all.insert(all.end(), data, data + send.bytes);
  }
  const Message end{-1, 0};
  const auto* const head = reinterpret_cast<const std::byte*>(&end);
  all.insert(all.end(), head, head + sizeof(end));
  comm->sends.clear();
  return round(reinterpret_cast<CommHandle>(comm), all.data(), all.size(), [](Comm& self) {
    for (const Recv& recv : std::exchange(self.recvs, {})) {
      const std::byte* at = self.data(recv.peer);
      Message message{};
      for (std::memcpy(&message, at, sizeof(message)); message.peer != self.rank && message.peer >= 0;
           std::memcpy(&message, at, sizeof(message))) {
        at += sizeof(message) + message.bytes;
      }
      if (message.peer == self.rank && message.bytes == recv.bytes) {
        std::memcpy(recv.data, at + sizeof(message), recv.bytes);
      }
    }
  });
}
SRT_EXPORT Outcome ncclAllReduce(const void* in, void* out, std::size_t count, Element element, Reduction op,
                                 CommHandle comm, NativeStream /*stream*/) {
  return round(comm, in, count * size_of(element), [&](Comm& self) { add_up(self, 0, count, op, out); });
}
SRT_EXPORT Outcome ncclReduce(const void* in, void* out, std::size_t count, Element element, Reduction op, int root,
                              CommHandle comm, NativeStream /*stream*/) {
  return round(comm, in, count * size_of(element), [&](Comm& self) {
    if (self.rank == root) {
      add_up(self, 0, count, op, out);
    }
  });
}
SRT_EXPORT Outcome ncclBroadcast(const void* in, void* out, std::size_t count, Element element, int root,
                                 CommHandle comm, NativeStream /*stream*/) {
  const std::size_t bytes = count * size_of(element);
  const bool gives = comm_of(comm)->rank == root;
  return round(comm, in, gives ? bytes : 0, [&](Comm& self) { std::memcpy(out, self.data(root), bytes); });
}
SRT_EXPORT Outcome ncclAllGather(const void* in, void* out, std::size_t count, Element element, CommHandle comm,
                                 NativeStream /*stream*/) {
  const std::size_t bytes = count * size_of(element);
  return round(comm, in, bytes, [&](Comm& self) {
    for (int rank = 0; rank < self.size; ++rank) {
      std::memcpy(static_cast<std::byte*>(out) + static_cast<std::size_t>(rank) * bytes, self.data(rank), bytes);
    }
  });
}
SRT_EXPORT Outcome ncclReduceScatter(const void* in, void* out, std::size_t count, Element element, Reduction op,
                                     CommHandle comm, NativeStream /*stream*/) {
  Comm& own = *comm_of(comm);
  const auto whole = static_cast<std::size_t>(own.size) * count * size_of(element);
  return round(comm, in, whole,
               [&](Comm& self) { add_up(self, static_cast<std::size_t>(self.rank) * count, count, op, out); });
}
SRT_EXPORT Outcome ncclSend(const void* data, std::size_t count, Element element, int peer, CommHandle comm,
                            NativeStream /*stream*/) {
  sender() = comm_of(comm);
  sender()->sends.push_back({peer, data, count * size_of(element)});
  return Outcome::kSuccess;
}
SRT_EXPORT Outcome ncclRecv(void* data, std::size_t count, Element element, int peer, CommHandle comm,
                            NativeStream /*stream*/) {
  sender() = comm_of(comm);
  sender()->recvs.push_back({peer, data, count * size_of(element)});
  return Outcome::kSuccess;
}
