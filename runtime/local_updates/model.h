// LocalModel: the parameters and buffers of one training as local updates see them, cut into fragments.
//
// A fragment is some whole tensors that follow each other in the order of the forward pass; it is merged as one. Its
// copies (anchor, snapshot, payload) are contiguous, the model's own tensors are where the program has them. Borrowed
// memory; used by the training's thread. Not for: what happens to it (updater.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/tensor.h"

namespace sirtaki::local_updates {

// A parameter that is trained. Its memory stays where it is as long as the model does.
struct LocalTensor {
  std::string name;
  TensorView view;                 // float32, CPU
  std::vector<std::int64_t> dims;  // empty: one dimension

  float* data() const { return reinterpret_cast<float*>(view.data); }
};

// How a buffer becomes equal on all ranks at a drain.
enum class BufferRule : std::uint8_t {
  kMean,      // the weighted mean; a running mean
  kVariance,  // a running variance, pooled with the buffer `mean`
  kMost,      // the largest: counters, and whatever holds integers
};
struct LocalBuffer {
  std::string name;
  TensorView view;  // CPU; float32, float64 or int64
  BufferRule rule = BufferRule::kMean;
  int mean = -1;  // kVariance: the number of the buffer that holds the running means
};

struct FragmentLayout {
  std::vector<int> tensors;           // in forward order
  std::vector<std::int64_t> offsets;  // by place in `tensors`: first element in the fragment
  std::int64_t numel = 0;
};

struct LocalModel {
  std::vector<LocalTensor> tensors;  // in forward order
  std::vector<LocalBuffer> buffers;
  std::vector<FragmentLayout> fragments;

  // Copies between the model and a fragment's contiguous array.
  void read(std::size_t fragment, std::span<float> out) const;
  void write(std::size_t fragment, std::span<const float> in) const;
  // XXH64 of all tensors' elements, in order.
  std::uint64_t digest() const;
  bool all_finite() const;
};

// Cut into `fragments` of about the same size; 0: of 4 MiB, at most 8; less where there are fewer tensors with
// elements. kUnsupported: a tensor that is not float32 or not in CPU memory; kInvalidArgument: no tensor with elements,
// two of one name or in one memory, a buffer whose rule does not fit.
Result<LocalModel> lay_out(std::vector<LocalTensor> tensors, std::vector<LocalBuffer> buffers, int fragments);

}  // namespace sirtaki::local_updates
