#include "adapters/tensorflow/call.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>

namespace sirtaki_tensorflow {
namespace {

struct Row {
  TfType type;
  sirtaki_dtype dtype;
  std::size_t bytes;
};

constexpr Row kTypes[] = {
    {kTfUint8, SIRTAKI_U8, 1},   {kTfInt8, SIRTAKI_I8, 1},       {kTfUint16, SIRTAKI_U16, 2},
    {kTfInt16, SIRTAKI_I16, 2},  {kTfInt32, SIRTAKI_I32, 4},     {kTfInt64, SIRTAKI_I64, 8},
    {kTfHalf, SIRTAKI_F16, 2},   {kTfBfloat16, SIRTAKI_BF16, 2}, {kTfFloat, SIRTAKI_F32, 4},
    {kTfDouble, SIRTAKI_F64, 8}, {kTfBool, SIRTAKI_BOOL, 1},
};

const Row* row_of(TfType type) {
  const auto* const row =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const Row& r) { return r.type == type; });
  return row == std::end(kTypes) ? nullptr : row;
}

Failure of_tensorflow(const ScopedStatus& status) {
  return status.ok() ? Failure{} : Failure{SIRTAKI_BUG, "TensorFlow: " + status.message(), sirtaki_rank()};
}

}  // namespace

// ---- Tensor ----

Tensor::Tensor(TfTensor* owned) : tensor_(owned), type_(tf().TF_TensorType(owned)) {
  for (int i = 0; i < tf().TF_NumDims(owned); ++i) {
    dims_.push_back(tf().TF_Dim(owned, i));
  }
}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  reset();
  tensor_ = std::exchange(other.tensor_, nullptr);
  type_ = other.type_;
  dims_ = std::move(other.dims_);
  return *this;
}

void Tensor::reset() {
  if (tensor_ != nullptr) {
    tf().TF_DeleteTensor(std::exchange(tensor_, nullptr));
  }
}

std::size_t Tensor::item_bytes() const {
  const Row* const row = row_of(type_);
  return row == nullptr ? 0 : row->bytes;
}

Failure Tensor::describe(sirtaki_tensor& out) const {
  const Row* const row = row_of(type_);
  if (row == nullptr) {
    return invalid("tensors of TensorFlow's type number " + std::to_string(type_) +
                   " cannot be sent; cast to one of uint8, int8, uint16, int16, int32, int64, float16, bfloat16, "
                   "float32, float64, bool");
  }
  out = {};
  out.struct_size = sizeof(out);
  out.data = data();
  out.dtype = row->dtype;
  out.ndim = static_cast<std::int32_t>(dims_.size());
  out.dims = dims_.data();
  return {};
}

// ---- Call ----

Failure Call::input(int index, Tensor& out) const {
  const ScopedStatus status;
  TfTensor* tensor = nullptr;
  tf().TF_GetInput(context_, index, &tensor, status.get());
  if (status.ok()) {
    out = Tensor(tensor);
  }
  return of_tensorflow(status);
}

Failure Call::in_place(int index, bool copy, Tensor& out) const {
  Tensor source;
  if (Failure failure = input(index, source); !failure.ok()) {
    return failure;
  }
  const std::vector<std::int64_t> dims = source.dims();
  source.reset();  // TensorFlow gives away only memory without a second reference
  const ScopedStatus status;
  int forwarded = -1;
  TfTensor* const target = tf().TF_ForwardInputOrAllocateOutput(
      context_, &index, 1, index, dims.data(), static_cast<int>(dims.size()), &forwarded, status.get());
  if (!status.ok()) {
    return of_tensorflow(status);
  }
  out = Tensor(target);
  if (copy && forwarded != index) {
    if (Failure failure = input(index, source); !failure.ok()) {
      return failure;
    }
    if (source.bytes() > 0) {
      std::memcpy(out.data(), source.data(), source.bytes());
    }
  }
  return {};
}

Failure Call::allocate(int index, TfType type, const std::vector<std::int64_t>& dims, std::size_t bytes,
                       Tensor& out) const {
  const ScopedStatus status;
  TfTensor* const tensor =
      tf().TF_AllocateOutput(context_, index, type, dims.data(), static_cast<int>(dims.size()), bytes, status.get());
  if (status.ok()) {
    out = Tensor(tensor);
  }
  return of_tensorflow(status);
}

Failure Call::set_output(int index, const Tensor& tensor) const {
  const ScopedStatus status;
  tf().TF_SetOutput(context_, index, tensor.get(), status.get());
  return of_tensorflow(status);
}

void Call::end(std::unique_ptr<Call> call, const Failure& failure) {
  if (!failure.ok()) {
    const ScopedStatus status;
    failure.write_to(status.get());
    tf().TF_OpKernelContext_Failure(call->context_, status.get());
  }
  Done done = std::move(call->done_);
  call.reset();
  done.run();
}

}  // namespace sirtaki_tensorflow
