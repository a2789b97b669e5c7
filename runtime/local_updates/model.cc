#include "runtime/local_updates/model.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

#include "kernels/finite/finite.h"
#include "runtime/base/check.h"
#include "runtime/base/digest.h"

namespace sirtaki::local_updates {
namespace {

constexpr std::int64_t kFragmentBytes = 4 << 20;
constexpr std::int64_t kMostByItself = 8;

Status refuse(const std::string& name, const std::string& why, Code code = Code::kInvalidArgument) {
  return {code, "tensor '" + name + "' cannot take part in local updates: " + why, {-1, name}};
}

Status check_tensors(const std::vector<LocalTensor>& tensors) {
  std::set<std::string> names;
  std::set<const std::byte*> memory;
  for (const LocalTensor& tensor : tensors) {
    if (tensor.view.dtype != DType::kF32) {
      return refuse(tensor.name, "it is " + std::string(dtype_name(tensor.view.dtype)) + ", not float32",
                    Code::kUnsupported);
    }
    if (tensor.view.device.type != DeviceType::kCpu) {
      return refuse(tensor.name, "it is not in CPU memory", Code::kUnsupported);
    }
    if (!names.insert(tensor.name).second) {
      return refuse(tensor.name, "another has this name");
    }
    if (tensor.view.numel < 0 || (tensor.view.numel > 0 && tensor.view.data == nullptr)) {
      return refuse(tensor.name, "it has no memory");
    }
    if (tensor.view.numel > 0 && !memory.insert(tensor.view.data).second) {
      return refuse(tensor.name, "another has the same memory; give tied parameters once");
    }
  }
  return {};
}

Status check_buffer(const LocalBuffer& buffer, const std::vector<LocalBuffer>& all) {
  const DType dtype = buffer.view.dtype;
  if (buffer.view.device.type != DeviceType::kCpu || (buffer.view.numel > 0 && buffer.view.data == nullptr)) {
    return refuse(buffer.name, "this buffer is not in CPU memory", Code::kUnsupported);
  }
  if (buffer.rule == BufferRule::kMost ? dtype != DType::kI64 && dtype != DType::kF32 && dtype != DType::kF64
                                       : dtype != DType::kF32 && dtype != DType::kF64) {
    return refuse(buffer.name, "this buffer is " + std::string(dtype_name(dtype)), Code::kUnsupported);
  }
  if (buffer.rule == BufferRule::kVariance) {
    const bool known = buffer.mean >= 0 && static_cast<std::size_t>(buffer.mean) < all.size();
    const LocalBuffer* mean = known ? &all[static_cast<std::size_t>(buffer.mean)] : nullptr;
    if (mean == nullptr || mean->rule != BufferRule::kMean || mean->view.numel != buffer.view.numel) {
      return refuse(buffer.name, "a running variance needs the buffer of its running means");
    }
  }
  return {};
}

std::int64_t fragments_by_itself(std::int64_t numel) {
  const std::int64_t bytes = numel * static_cast<std::int64_t>(sizeof(float));
  return std::clamp((bytes + kFragmentBytes - 1) / kFragmentBytes, std::int64_t{1}, kMostByItself);
}

}  // namespace

void LocalModel::read(std::size_t fragment, std::span<float> out) const {
  const FragmentLayout& layout = fragments[fragment];
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    const LocalTensor& tensor = tensors[static_cast<std::size_t>(layout.tensors[i])];
    std::copy_n(tensor.data(), tensor.view.numel, out.data() + layout.offsets[i]);
  }
}

void LocalModel::write(std::size_t fragment, std::span<const float> in) const {
  const FragmentLayout& layout = fragments[fragment];
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    const LocalTensor& tensor = tensors[static_cast<std::size_t>(layout.tensors[i])];
    std::copy_n(in.data() + layout.offsets[i], tensor.view.numel, tensor.data());
  }
}

std::uint64_t LocalModel::digest() const {
  std::uint64_t hash = 0;
  for (const LocalTensor& tensor : tensors) {
    hash = digest_of(tensor.view.bytes(), hash);
  }
  return hash;
}

bool LocalModel::all_finite() const {
  return std::ranges::all_of(tensors, [](const LocalTensor& tensor) {
    return kernels::all_finite(DType::kF32, tensor.view.data, tensor.view.numel);
  });
}

// A tensor belongs to the fragment that contains its middle; fragments without tensors are dropped.
std::vector<FragmentLayout> cut_fragments(const std::vector<std::int64_t>& sizes, int fragments) {
  const std::int64_t numel = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  const std::int64_t count = fragments > 0 ? fragments : fragments_by_itself(numel);
  std::vector<FragmentLayout> parts(static_cast<std::size_t>(count));
  std::int64_t before = 0;
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    const std::int64_t size = sizes[t];
    if (size == 0) {
      continue;
    }
    const double middle = static_cast<double>(before) + static_cast<double>(size) / 2;
    const auto wanted = static_cast<std::int64_t>(middle * static_cast<double>(count) / static_cast<double>(numel));
    before += size;
    FragmentLayout& part = parts[static_cast<std::size_t>(std::clamp(wanted, std::int64_t{0}, count - 1))];
    part.tensors.push_back(static_cast<int>(t));
    part.offsets.push_back(part.numel);
    part.numel += size;
  }
  std::erase_if(parts, [](const FragmentLayout& part) { return part.tensors.empty(); });
  return parts;
}

Result<LocalModel> lay_out(std::vector<LocalTensor> tensors, std::vector<LocalBuffer> buffers, int fragments) {
  SRT_TRY(check_tensors(tensors));
  for (const LocalBuffer& buffer : buffers) {
    SRT_TRY(check_buffer(buffer, buffers));
  }
  std::vector<std::int64_t> sizes;
  for (LocalTensor& tensor : tensors) {
    sizes.push_back(tensor.view.numel);
    if (tensor.dims.empty()) {
      tensor.dims = {tensor.view.numel};
    }
  }
  if (std::ranges::all_of(sizes, [](std::int64_t size) { return size == 0; })) {
    return invalid_argument("local updates need a parameter with elements");
  }
  LocalModel model{std::move(tensors), std::move(buffers), {}};
  model.fragments = cut_fragments(sizes, fragments);
  return model;
}

}  // namespace sirtaki::local_updates
