// Tensor, Call: inputs and outputs of one call of a kernel, and its end.
//
// The thread that works on a Call owns it: first the thread of TensorFlow, then the completing thread, one at a time.
// TensorFlow keeps the context until the call has ended.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "adapters/c/sirtaki.h"
#include "adapters/tensorflow/done.h"
#include "adapters/tensorflow/status.h"

namespace sirtaki_tensorflow {

// A reference to the memory of a tensor, row-major like all tensors of TensorFlow.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(TfTensor* owned);
  Tensor(Tensor&& other) noexcept
      : tensor_(std::exchange(other.tensor_, nullptr)), type_(other.type_), dims_(std::move(other.dims_)) {}
  Tensor& operator=(Tensor&& other) noexcept;
  ~Tensor() { reset(); }

  void reset();
  explicit operator bool() const { return tensor_ != nullptr; }
  const TfTensor* get() const { return tensor_; }
  TfType type() const { return type_; }
  const std::vector<std::int64_t>& dims() const { return dims_; }
  void* data() const { return tf().TF_TensorData(tensor_); }
  std::size_t bytes() const { return tf().TF_TensorByteSize(tensor_); }
  std::size_t item_bytes() const;  // 0 for a type that has no dtype of the runtime
  // Borrows memory and dimensions of this tensor. Fails for a type that has no dtype of the runtime.
  Failure describe(sirtaki_tensor& out) const;

 private:
  TfTensor* tensor_ = nullptr;
  TfType type_ = kTfFloat;
  std::vector<std::int64_t> dims_;
};

class Call {
 public:
  Call(TfContext* context, Done done) : context_(context), done_(std::move(done)) {}

  int inputs() const { return tf().TF_NumInputs(context_); }
  Failure input(int index, Tensor& out) const;
  // Returns a tensor for output `index` with the shape of input `index`: the memory of the input if it has no other
  // user, else other memory with the same values (`copy`) or any values.
  Failure in_place(int index, bool copy, Tensor& out) const;
  Failure allocate(int index, TfType type, const std::vector<std::int64_t>& dims, std::size_t bytes, Tensor& out) const;
  Failure set_output(int index, const Tensor& tensor) const;
  // Ends the call. It must be the last use of the call, after all of its tensors are gone.
  static void end(std::unique_ptr<Call> call, const Failure& failure);

 private:
  TfContext* const context_;
  Done done_;
};

}  // namespace sirtaki_tensorflow
