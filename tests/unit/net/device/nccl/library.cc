// A library that loads like NCCL; FAKE_VERSION is its version, FAKE_PARTIAL omits functions.
#include "runtime/net/device/nccl/nccl_api.h"

using sirtaki::net::nccl::Outcome;

#define SRT_EXPORT extern "C" __attribute__((visibility("default")))
#define SRT_STUB(name)        \
  SRT_EXPORT Outcome name() { \
    return Outcome::kSuccess; \
  }

SRT_EXPORT Outcome ncclGetVersion(int* version) {
  *version = FAKE_VERSION;
  return Outcome::kSuccess;
}
SRT_STUB(ncclGetUniqueId)
SRT_STUB(ncclCommInitRankConfig)
SRT_STUB(ncclCommFinalize)
SRT_STUB(ncclCommDestroy)
SRT_STUB(ncclCommAbort)
SRT_STUB(ncclCommGetAsyncError)
SRT_STUB(ncclGetErrorString)
SRT_STUB(ncclGetLastError)
SRT_STUB(ncclGroupStart)
SRT_STUB(ncclGroupEnd)
SRT_STUB(ncclAllReduce)
SRT_STUB(ncclReduce)
SRT_STUB(ncclBroadcast)
SRT_STUB(ncclAllGather)
SRT_STUB(ncclReduceScatter)
#ifndef FAKE_PARTIAL
SRT_STUB(ncclSend)
SRT_STUB(ncclRecv)
#endif
