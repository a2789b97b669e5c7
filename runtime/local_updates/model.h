// LocalModel: parameters and buffers of one training, cut into fragments.
//
// A fragment consists of whole tensors that follow each other in the order of the forward pass, and is merged as a
// unit. Its copies (anchor, snapshot, payload) are contiguous; the tensors of the model stay in the memory of the
// program. Borrowed memory, used on the thread of the training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/tensor.h"

namespace sirtaki::local_updates {

// A trained parameter. Its memory must not move while the model exists.
struct LocalTensor {
  std::string name;
  TensorView view;                 // float32, CPU
  std::vector<std::int64_t> dims;  // empty: one dimension

  float* data() const { return reinterpret_cast<float*>(view.data); }
};

// The rule that makes a buffer equal on all ranks in a drain.
enum class BufferRule : std::uint8_t {
  kMean,      // weighted mean, for running means
  kVariance,  // running variance, pooled with the buffer `mean`
  kMost,      // maximum, for counters and all integers
};
struct LocalBuffer {
  std::string name;
  TensorView view;  // CPU; float32, float64 or int64
  BufferRule rule = BufferRule::kMean;
  int mean = -1;  // kVariance: index of the buffer with the running means
};

struct FragmentLayout {
  std::vector<int> tensors;           // in forward order
  std::vector<std::int64_t> offsets;  // indexed by place in `tensors`: first element in the fragment
  std::int64_t numel = 0;
};

struct LocalModel {
  std::vector<LocalTensor> tensors;  // in forward order
  std::vector<LocalBuffer> buffers;
  std::vector<FragmentLayout> fragments;

  // Copy between the model and the contiguous array of a fragment.
  void read(std::size_t fragment, std::span<float> out) const;
  void write(std::size_t fragment, std::span<const float> in) const;
  // Returns the XXH64 digest of the elements of all tensors, in order.
  std::uint64_t digest() const;
  bool all_finite() const;
};

// Returns the fragments of tensors of these sizes, as lay_out() cuts them; 0: as many as it takes by itself.
std::vector<FragmentLayout> cut_fragments(const std::vector<std::int64_t>& sizes, int fragments);

// Returns the model, cut into `fragments` of similar size. 0 means fragments of 4 MiB, at most 8; there are fewer if
// the model has fewer tensors with elements. kUnsupported: a tensor that is not float32 or not in CPU memory.
// kInvalidArgument: no tensor with elements, two with one name or one memory, a buffer whose rule does not fit.
Result<LocalModel> lay_out(std::vector<LocalTensor> tensors, std::vector<LocalBuffer> buffers, int fragments);

}  // namespace sirtaki::local_updates
