#include "runtime/engine/device/nccl_ids.h"

#include <limits>
#include <memory>
#include <span>
#include <utility>

namespace sirtaki::engine {

void NcclIds::exchange(const std::string& /*key*/, const net::nccl::UniqueId* own,
                       MoveFunction<void(Result<net::nccl::UniqueId>)> done) {
  const auto id = std::make_shared<net::nccl::UniqueId>();
  if (own != nullptr) {
    *id = *own;
  }
  net::CollectiveArgs args;
  args.kind = OpKind::kBroadcast;
  args.tag = next_;
  args.dtype = DType::kU8;
  args.priority = std::numeric_limits<std::int32_t>::min();
  args.out = std::as_writable_bytes(std::span(id.get(), 1));
  args.in = args.out;
  ++next_.value;
  net_.start(std::move(args), [id, done = std::move(done)](const Status& status) mutable {
    done(status.ok() ? Result<net::nccl::UniqueId>(*id) : Result<net::nccl::UniqueId>(status));
  });
}

}  // namespace sirtaki::engine
