#include "kernels/cuda_kernels.h"

namespace sirtaki::kernels::cuda {
namespace {

constexpr Kernels kKernels{
    .version = kKernelsVersion,
    .group_topk_encode = group_topk_encode,
    .group_topk_sum = group_topk_sum,
    .twobit_encode = twobit_encode,
    .twobit_sum = twobit_sum,
    .twobit_count = twobit_count,
    .twobit_from_counts = twobit_from_counts,
    .scaled_encode = scaled_encode,
    .scaled_sum = scaled_sum,
    .cast = cast,
    .all_finite = all_finite,
    .momentum_correct = momentum_correct,
    .sparse_sum = sparse_sum,
    .threshold_scratch_bytes = threshold_scratch_bytes,
    .threshold_select = threshold_select,
    .filter_norms = filter_norms,
    .filter_select = filter_select,
    .filter_gather = filter_gather,
    .filter_sum = filter_sum,
};

}  // namespace
}  // namespace sirtaki::kernels::cuda

const sirtaki::kernels::cuda::Kernels* sirtaki_cuda_kernels() {
  return &sirtaki::kernels::cuda::kKernels;
}
