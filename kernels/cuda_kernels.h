// The table of all CUDA kernels. The plug-in libsirtaki_cuda.so exports the function that returns it, and nothing else.
//
// The runtime loads the plug-in at run time, so that no other library is linked with CUDA. kernels/*/cuda.h describes
// each kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cast/cuda.h"
#include "kernels/cuda_launch.h"
#include "kernels/filter/cuda.h"
#include "kernels/finite/cuda.h"
#include "kernels/group_topk/cuda.h"
#include "kernels/momentum_correction/cuda.h"
#include "kernels/outer_update/cuda.h"
#include "kernels/reduce/cuda.h"
#include "kernels/scaled_cast/cuda.h"
#include "kernels/sparse_sum/cuda.h"
#include "kernels/threshold_select/cuda.h"
#include "kernels/twobit/cuda.h"

namespace sirtaki::kernels::cuda {

// Version of the table and of the argument structs; the loader refuses a plug-in of any other version.
inline constexpr std::uint32_t kKernelsVersion = 5;

struct Kernels {
  std::uint32_t version;
  // Loads every kernel for the current device. Must be called once per device, before anything else runs on it.
  Launch (*load)();
  Launch (*group_topk_encode)(const GroupTopkEncode& args, Stream stream);
  Launch (*group_topk_sum)(const GroupTopkSum& args, Stream stream);
  Launch (*twobit_measure)(const TwobitMeasure& args, Stream stream);
  Launch (*twobit_choose)(const TwobitChoose& args, Stream stream);
  Launch (*twobit_encode)(const TwobitEncode& args, Stream stream);
  Launch (*twobit_sum)(const TwobitSum& args, Stream stream);
  Launch (*scaled_encode)(const ScaledEncode& args, Stream stream);
  Launch (*scaled_sum)(const ScaledSum& args, Stream stream);
  Launch (*cast)(const Cast& args, Stream stream);
  Launch (*all_finite)(const Finite& args, Stream stream);
  Launch (*reduce)(const Reduce& args, Stream stream);
  Launch (*momentum_correct)(const MomentumCorrect& args, Stream stream);
  Launch (*outer_update)(const OuterUpdate& args, Stream stream);
  Launch (*sparse_sum)(const SparseSum& args, Stream stream);
  Launch (*threshold_select)(const ThresholdEncode& args, Stream stream);
  Launch (*filter_norms)(const FilterNorms& args, Stream stream);
  Launch (*filter_select)(const FilterSelect& args, Stream stream);
  Launch (*filter_gather)(const FilterTake& args, Stream stream);
  Launch (*filter_sum)(const FilterSum& args, Stream stream);
};

// Name and type of the exported function.
inline constexpr char kKernelsSymbol[] = "sirtaki_cuda_kernels";
using KernelsFunction = const Kernels*();

}  // namespace sirtaki::kernels::cuda

extern "C" __attribute__((visibility("default"))) const sirtaki::kernels::cuda::Kernels* sirtaki_cuda_kernels();
