// Types and functions of NCCL as this project declares them, so that it builds without the header of NCCL and works
// with every version from kOldestNccl on.
//
// Api is a table of functions, so that tests can replace them; all calls of NCCL go through one.
// Threads: those of NCCL; this project calls one communicator from one thread. Not for device functions of NCCL.
#pragma once

#include <cstddef>
#include <limits>

namespace sirtaki::net::nccl {

// Values of ncclResult_t.
enum class Outcome : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};
// Returns true for everything but success and progress.
constexpr bool is_error(Outcome outcome) {
  return outcome != Outcome::kSuccess && outcome != Outcome::kInProgress;
}

// Values of ncclDataType_t and ncclRedOp_t.
enum class Element : int {
  kI8 = 0,
  kU8 = 1,
  kI32 = 2,
  kI64 = 4,
  kF16 = 6,
  kF32 = 7,
  kF64 = 8,
  kBF16 = 9,
};
enum class Reduction : int { kSum = 0, kProduct = 1, kMax = 2, kMin = 3, kAverage = 4 };

struct NativeComm;               // opaque
using CommHandle = NativeComm*;  // ncclComm_t
using NativeStream = void*;      // cudaStream_t

struct UniqueId {
  char internal[128];
};

inline constexpr int kOldestNccl = 21801;
inline constexpr int kUndefined = std::numeric_limits<int>::min();

// ncclConfig_t of the oldest version. Later versions append members, and derive from `size` and `version` which of them
// are missing here.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = kOldestNccl;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
};

struct Api {
  Outcome (*get_version)(int* version);
  Outcome (*get_unique_id)(UniqueId* id);
  Outcome (*comm_init_rank_config)(CommHandle* comm, int size, UniqueId id, int rank, Config* config);
  Outcome (*comm_finalize)(CommHandle comm);
  Outcome (*comm_destroy)(CommHandle comm);
  Outcome (*comm_abort)(CommHandle comm);
  Outcome (*comm_get_async_error)(CommHandle comm, Outcome* error);
  const char* (*get_error_string)(Outcome outcome);
  const char* (*get_last_error)(CommHandle comm);
  Outcome (*group_start)();
  Outcome (*group_end)();
  Outcome (*all_reduce)(const void* in, void* out, std::size_t count, Element element, Reduction op, CommHandle comm,
                        NativeStream stream);
  Outcome (*reduce)(const void* in, void* out, std::size_t count, Element element, Reduction op, int root,
                    CommHandle comm, NativeStream stream);
  Outcome (*broadcast)(const void* in, void* out, std::size_t count, Element element, int root, CommHandle comm,
                       NativeStream stream);
  Outcome (*all_gather)(const void* in, void* out, std::size_t count, Element element, CommHandle comm,
                        NativeStream stream);
  Outcome (*reduce_scatter)(const void* in, void* out, std::size_t count, Element element, Reduction op,
                            CommHandle comm, NativeStream stream);
  Outcome (*send)(const void* data, std::size_t count, Element element, int peer, CommHandle comm, NativeStream stream);
  Outcome (*recv)(void* data, std::size_t count, Element element, int peer, CommHandle comm, NativeStream stream);
};

}  // namespace sirtaki::net::nccl
