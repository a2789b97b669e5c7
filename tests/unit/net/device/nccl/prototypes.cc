// Compiled if the header of NCCL is found: the declarations of runtime/net/device/nccl/nccl_api.h match the header.
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "runtime/net/device/nccl/nccl_api.h"

namespace sirtaki::net::nccl {
namespace {

// Maps types of NCCL to ours.
template <class T>
struct Ours {
  using Type = T;
};
template <class T>
struct Ours<T*> {
  using Type = typename Ours<T>::Type*;
};
template <class T>
struct Ours<const T> {
  using Type = std::add_const_t<typename Ours<T>::Type>;
};
template <>
struct Ours<ncclComm> {
  using Type = NativeComm;
};
template <>
struct Ours<cudaStream_t> {
  using Type = NativeStream;
};
template <>
struct Ours<ncclUniqueId> {
  using Type = UniqueId;
};
template <>
struct Ours<ncclConfig_t> {
  using Type = Config;
};
template <>
struct Ours<ncclResult_t> {
  using Type = Outcome;
};
template <>
struct Ours<ncclDataType_t> {
  using Type = Element;
};
template <>
struct Ours<ncclRedOp_t> {
  using Type = Reduction;
};
template <class R, class... Arguments>
struct Ours<R(Arguments...)> {
  using Type = typename Ours<R>::Type(typename Ours<Arguments>::Type...);
};

template <class Theirs, class Member>
constexpr bool kSame = std::is_same_v<typename Ours<Theirs>::Type, std::remove_pointer_t<Member>>;

static_assert(kSame<decltype(ncclGetVersion), decltype(Api::get_version)>);
static_assert(kSame<decltype(ncclGetUniqueId), decltype(Api::get_unique_id)>);
static_assert(kSame<decltype(ncclCommInitRankConfig), decltype(Api::comm_init_rank_config)>);
static_assert(kSame<decltype(ncclCommFinalize), decltype(Api::comm_finalize)>);
static_assert(kSame<decltype(ncclCommDestroy), decltype(Api::comm_destroy)>);
static_assert(kSame<decltype(ncclCommAbort), decltype(Api::comm_abort)>);
static_assert(kSame<decltype(ncclCommGetAsyncError), decltype(Api::comm_get_async_error)>);
static_assert(kSame<decltype(ncclGetErrorString), decltype(Api::get_error_string)>);
static_assert(kSame<decltype(ncclGetLastError), decltype(Api::get_last_error)>);
static_assert(kSame<decltype(ncclGroupStart), decltype(Api::group_start)>);
static_assert(kSame<decltype(ncclGroupEnd), decltype(Api::group_end)>);
static_assert(kSame<decltype(ncclAllReduce), decltype(Api::all_reduce)>);
static_assert(kSame<decltype(ncclReduce), decltype(Api::reduce)>);
static_assert(kSame<decltype(ncclBroadcast), decltype(Api::broadcast)>);
static_assert(kSame<decltype(ncclAllGather), decltype(Api::all_gather)>);
static_assert(kSame<decltype(ncclReduceScatter), decltype(Api::reduce_scatter)>);
static_assert(kSame<decltype(ncclSend), decltype(Api::send)>);
static_assert(kSame<decltype(ncclRecv), decltype(Api::recv)>);

static_assert(static_cast<int>(ncclSuccess) == static_cast<int>(Outcome::kSuccess));
static_assert(static_cast<int>(ncclUnhandledCudaError) == static_cast<int>(Outcome::kUnhandledCudaError));
static_assert(static_cast<int>(ncclSystemError) == static_cast<int>(Outcome::kSystemError));
static_assert(static_cast<int>(ncclInternalError) == static_cast<int>(Outcome::kInternalError));
static_assert(static_cast<int>(ncclInvalidArgument) == static_cast<int>(Outcome::kInvalidArgument));
static_assert(static_cast<int>(ncclInvalidUsage) == static_cast<int>(Outcome::kInvalidUsage));
static_assert(static_cast<int>(ncclRemoteError) == static_cast<int>(Outcome::kRemoteError));
static_assert(static_cast<int>(ncclInProgress) == static_cast<int>(Outcome::kInProgress));
static_assert(static_cast<int>(ncclInt8) == static_cast<int>(Element::kI8));
static_assert(static_cast<int>(ncclUint8) == static_cast<int>(Element::kU8));
static_assert(static_cast<int>(ncclInt32) == static_cast<int>(Element::kI32));
static_assert(static_cast<int>(ncclInt64) == static_cast<int>(Element::kI64));
static_assert(static_cast<int>(ncclFloat16) == static_cast<int>(Element::kF16));
static_assert(static_cast<int>(ncclFloat32) == static_cast<int>(Element::kF32));
static_assert(static_cast<int>(ncclFloat64) == static_cast<int>(Element::kF64));
static_assert(static_cast<int>(ncclBfloat16) == static_cast<int>(Element::kBF16));
static_assert(static_cast<int>(ncclSum) == static_cast<int>(Reduction::kSum));
static_assert(static_cast<int>(ncclProd) == static_cast<int>(Reduction::kProduct));
static_assert(static_cast<int>(ncclMax) == static_cast<int>(Reduction::kMax));
static_assert(static_cast<int>(ncclMin) == static_cast<int>(Reduction::kMin));
static_assert(static_cast<int>(ncclAvg) == static_cast<int>(Reduction::kAverage));

static_assert(sizeof(ncclResult_t) == sizeof(Outcome) && sizeof(ncclDataType_t) == sizeof(Element) &&
              sizeof(ncclRedOp_t) == sizeof(Reduction));
static_assert(sizeof(ncclUniqueId) == sizeof(UniqueId) && alignof(ncclUniqueId) == alignof(UniqueId));
static_assert(std::is_trivially_copyable_v<UniqueId> && std::is_trivially_destructible_v<UniqueId>);

#define SRT_SAME_PLACE(theirs, ours) static_assert(offsetof(ncclConfig_t, theirs) == offsetof(Config, ours))
SRT_SAME_PLACE(size, size);
SRT_SAME_PLACE(magic, magic);
SRT_SAME_PLACE(version, version);
SRT_SAME_PLACE(blocking, blocking);
SRT_SAME_PLACE(cgaClusterSize, cga_cluster_size);
SRT_SAME_PLACE(minCTAs, min_ctas);
SRT_SAME_PLACE(maxCTAs, max_ctas);
SRT_SAME_PLACE(netName, net_name);
SRT_SAME_PLACE(splitShare, split_share);
static_assert(NCCL_CONFIG_UNDEF_INT == kUndefined);
static_assert(sizeof(ncclConfig_t) >= sizeof(Config));

}  // namespace
}  // namespace sirtaki::net::nccl
