#include "kernels/cuda_kernels.h"

namespace sirtaki::kernels::cuda {
namespace {

constexpr Kernels kKernels{
    .version = kKernelsVersion,
    .group_topk_encode = group_topk_encode,
    .group_topk_sum = group_topk_sum,
};

}  // namespace
}  // namespace sirtaki::kernels::cuda

const sirtaki::kernels::cuda::Kernels* sirtaki_cuda_kernels() {
  return &sirtaki::kernels::cuda::kKernels;
}
