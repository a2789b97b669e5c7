#include "runtime/net/combine.h"

#include "kernels/reduce/reduce.h"
#include "kernels/scale/scale.h"

namespace sirtaki::net {

void combine(ReduceOp op, DType dtype, std::span<const std::byte* const> sources, Bytes out) {
  const auto elements = static_cast<std::int64_t>(out.size() / dtype_size(dtype));
  kernels::reduce(op == ReduceOp::kAverage ? ReduceOp::kSum : op, dtype, sources, out.data(), elements);
  if (op == ReduceOp::kAverage) {
    kernels::divide_by(dtype, out.data(), elements, static_cast<std::int64_t>(sources.size()));
  }
}

}  // namespace sirtaki::net
