#include "runtime/net/gloo/gloo_calls.h"

// The headers of Gloo do not compile without warnings.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wnon-virtual-dtor"
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/common/error.h>
#include <gloo/context.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/unbound_buffer.h>
#pragma GCC diagnostic pop

#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cast/cast.h"
#include "kernels/reduce/reduce.h"
#include "kernels/scale/scale.h"

namespace sirtaki::net {
namespace {

using Milliseconds = std::chrono::milliseconds;

// No timeout: the bridge fails once the operation is cancelled or a peer is lost, which ends every wait.
class BridgeBuffer final : public gloo::transport::UnboundBuffer {
 public:
  BridgeBuffer(void* memory, std::size_t bytes, std::shared_ptr<GlooBridge> bridge)
      : UnboundBuffer(memory, bytes), bridge_(std::move(bridge)) {}
  ~BridgeBuffer() override {
    bridge_->release(*sends_);
    bridge_->release(*receives_);
  }

  bool waitRecv(int* rank, Milliseconds) override { return wait(*receives_, rank); }
  bool waitSend(int* rank, Milliseconds) override { return wait(*sends_, rank); }
  void abortWaitRecv() override { bridge_->fail({Code::kAborted, "the receive was aborted"}); }
  void abortWaitSend() override { bridge_->fail({Code::kAborted, "the send was aborted"}); }

  void send(int peer, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    bridge_->send(peer, slot, part(offset, bytes), sends_);
  }
  void recv(int peer, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    bridge_->recv(peer, slot, part(offset, bytes), receives_);
  }
  void recv(std::vector<int> peers, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    if (peers.size() != 1) {
      throw gloo::InvalidOperationException("receiving from any of several ranks is not supported");
    }
    recv(peers[0], slot, offset, bytes);
  }

 private:
  Bytes part(std::size_t offset, std::size_t bytes) const {
    return Bytes(static_cast<std::byte*>(ptr), size)
        .subspan(offset, bytes == kUnspecifiedByteCount ? size - offset : bytes);
  }
  bool wait(GlooBridge::Transfers& transfers, int* rank) {
    const Result<Rank> peer = bridge_->wait(transfers);
    if (!peer) {
      // Gloo ignores a false result, so an exception is thrown.
      throw gloo::IoException(peer.status().to_string());
    }
    if (rank != nullptr) {
      *rank = *peer;
    }
    return true;
  }

  std::shared_ptr<GlooBridge> bridge_;
  std::shared_ptr<GlooBridge::Transfers> sends_ = std::make_shared<GlooBridge::Transfers>();
  std::shared_ptr<GlooBridge::Transfers> receives_ = std::make_shared<GlooBridge::Transfers>();
};

class NoAddress final : public gloo::transport::Address {
 public:
  std::string str() const override { return "bridge"; }
  std::vector<char> bytes() const override { return {}; }
};

// The collectives of Gloo only test whether a pair exists.
class NoPair final : public gloo::transport::Pair {
 public:
  const gloo::transport::Address& address() const override { return address_; }
  void connect(const std::vector<char>&) override {}
  void close() override {}
  void setSync(bool, bool) override {}
  std::unique_ptr<gloo::transport::Buffer> createSendBuffer(int, void*, std::size_t) override { unsupported(); }
  std::unique_ptr<gloo::transport::Buffer> createRecvBuffer(int, void*, std::size_t) override { unsupported(); }
  void send(gloo::transport::UnboundBuffer*, std::uint64_t, std::size_t, std::size_t) override { unsupported(); }
  void recv(gloo::transport::UnboundBuffer*, std::uint64_t, std::size_t, std::size_t) override { unsupported(); }

 private:
  [[noreturn]] static void unsupported() { throw gloo::InvalidOperationException("bound buffers are not supported"); }
  NoAddress address_;
};

class BridgeTransport final : public gloo::transport::Context {
 public:
  BridgeTransport(int own_rank, int ranks, std::shared_ptr<GlooBridge> bridge)
      : Context(own_rank, ranks), bridge_(std::move(bridge)) {
    for (int peer = 0; peer < ranks; ++peer) {
      createPair(peer);
    }
  }
  std::unique_ptr<gloo::transport::Pair>& createPair(int peer) override {
    auto& pair = pairs_[static_cast<std::size_t>(peer)];
    pair = std::make_unique<NoPair>();
    return pair;
  }
  std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(void* memory, std::size_t bytes) override {
    return std::make_unique<BridgeBuffer>(memory, bytes, bridge_);
  }

 private:
  std::shared_ptr<GlooBridge> bridge_;
};

class BridgeContext final : public gloo::Context {
 public:
  BridgeContext(int own_rank, int ranks, std::shared_ptr<GlooBridge> bridge) : Context(own_rank, ranks) {
    transportContext_ = std::make_shared<BridgeTransport>(own_rank, ranks, std::move(bridge));
  }
};

using ContextPointer = std::shared_ptr<BridgeContext>;

// Gloo takes inputs as mutable memory, and does not write to it.
template <class T>
T* memory_of(ConstBytes bytes) {
  return const_cast<T*>(reinterpret_cast<const T*>(bytes.data()));
}

// T has the size of an element; only the reduce function knows its type.
template <class T>
void allreduce(const CollectiveArgs& args, const ContextPointer& context) {
  gloo::AllreduceOptions options(context);
  const std::size_t elements = args.out.size() / sizeof(T);
  if (args.in.data() != args.out.data()) {
    options.setInput(memory_of<T>(args.in), elements);
  }
  options.setOutput(memory_of<T>(args.out), elements);
  options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  const ReduceOp op = args.op == ReduceOp::kAverage ? ReduceOp::kSum : args.op;
  options.setReduceFunction([op, dtype = args.dtype](void* out, const void* a, const void* b, std::size_t n) {
    const std::array<const std::byte*, 2> sources{static_cast<const std::byte*>(a), static_cast<const std::byte*>(b)};
    kernels::reduce(op, dtype, sources, static_cast<std::byte*>(out), static_cast<std::int64_t>(n));
  });
  gloo::allreduce(options);
}

// Sums in float32, because Gloo rounds after each rank, and a sum of halves may overflow.
void average_halves(const CollectiveArgs& args, int size, const ContextPointer& context) {
  std::vector<float> values(args.out.size() / dtype_size(args.dtype));
  const auto n = static_cast<std::int64_t>(values.size());
  CollectiveArgs wide = args;
  wide.dtype = DType::kF32;
  wide.out = std::as_writable_bytes(std::span(values));
  wide.in = wide.out;
  kernels::cast(args.dtype, args.in.data(), DType::kF32, wide.out.data(), n);
  allreduce<std::uint32_t>(wide, context);
  kernels::divide_by(DType::kF32, wide.out.data(), n, size);
  kernels::cast(DType::kF32, wide.out.data(), args.dtype, args.out.data(), n);
}

void allreduce(const CollectiveArgs& args, int size, const ContextPointer& context) {
  if (args.op == ReduceOp::kAverage && (args.dtype == DType::kF16 || args.dtype == DType::kBF16)) {
    average_halves(args, size, context);
    return;
  }
  switch (dtype_size(args.dtype)) {
    case 1:
      allreduce<std::uint8_t>(args, context);
      break;
    case 2:
      allreduce<std::uint16_t>(args, context);
      break;
    case 4:
      allreduce<std::uint32_t>(args, context);
      break;
    default:
      allreduce<std::uint64_t>(args, context);
  }
  if (args.op == ReduceOp::kAverage) {
    kernels::divide_by(args.dtype, args.out.data(), static_cast<std::int64_t>(args.out.size() / dtype_size(args.dtype)),
                       size);
  }
}

template <class Int>
std::vector<Int> in_bytes(const std::vector<std::int64_t>& counts, DType dtype) {
  std::vector<Int> bytes;
  for (const std::int64_t count : counts) {
    bytes.push_back(static_cast<Int>(count) * static_cast<Int>(dtype_size(dtype)));
  }
  return bytes;
}

void broadcast(const CollectiveArgs& args, const ContextPointer& context) {
  gloo::BroadcastOptions options(context);
  options.setOutput(memory_of<std::uint8_t>(args.out), args.out.size());
  options.setRoot(args.root);
  gloo::broadcast(options);
}

void allgather(const CollectiveArgs& args, const ContextPointer& context) {
  gloo::AllgathervOptions options(context);
  options.setInput(memory_of<std::uint8_t>(args.in), args.in.size());
  options.setOutput(memory_of<std::uint8_t>(args.out), in_bytes<std::size_t>(args.recv_counts, args.dtype));
  gloo::allgatherv(options);
}

void alltoall(const CollectiveArgs& args, const ContextPointer& context) {
  gloo::AlltoallvOptions options(context);
  options.setInput(memory_of<std::uint8_t>(args.in), in_bytes<std::int64_t>(args.send_counts, args.dtype));
  options.setOutput(memory_of<std::uint8_t>(args.out), in_bytes<std::int64_t>(args.recv_counts, args.dtype));
  gloo::alltoallv(options);
}

void dispatch(const CollectiveArgs& args, int size, const ContextPointer& context) {
  switch (args.kind) {
    case OpKind::kAllreduce:
      allreduce(args, size, context);
      return;
    case OpKind::kBroadcast:
      broadcast(args, context);
      return;
    case OpKind::kAllgather:
      allgather(args, context);
      return;
    case OpKind::kAlltoall:
      alltoall(args, context);
      return;
    case OpKind::kBarrier: {
      gloo::BarrierOptions options(context);
      gloo::barrier(options);
      return;
    }
    case OpKind::kReduceScatter:
      break;
  }
  throw gloo::InvalidOperationException("no such collective");
}

}  // namespace

Status call_gloo(const CollectiveArgs& args, Rank rank, int size, const std::shared_ptr<GlooBridge>& bridge) {
  try {
    dispatch(args, size, std::make_shared<BridgeContext>(rank, size, bridge));
  } catch (const std::exception& error) {
    const Status cause = bridge->failure();
    return cause.ok() ? bug(error.what()) : cause;
  }
  return {};
}

}  // namespace sirtaki::net
