#include "kernels/cuda_kernels.h"

namespace sirtaki::kernels::cuda {
namespace {

Launch load_all() {
  Launch last;
  for (auto* const part :
       {load_group_topk, load_twobit, load_scaled_cast, load_cast, load_finite, load_reduce, load_momentum_correction,
        load_outer_update, load_sparse_sum, load_threshold_select, load_filter}) {
    last = last.ok() ? part() : last;
  }
  return last;
}

constexpr Kernels kKernels{
    .version = kKernelsVersion,
    .load = load_all,
    .group_topk_encode = group_topk_encode,
    .group_topk_sum = group_topk_sum,
    .twobit_measure = twobit_measure,
    .twobit_choose = twobit_choose,
    .twobit_encode = twobit_encode,
    .twobit_sum = twobit_sum,
    .scaled_encode = scaled_encode,
    .scaled_sum = scaled_sum,
    .cast = cast,
    .all_finite = all_finite,
    .reduce = reduce,
    .momentum_correct = momentum_correct,
    .outer_update = outer_update,
    .sparse_sum = sparse_sum,
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
