#include "adapters/c/struct_size.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>

namespace sirtaki::adapters {
namespace {

// No struct is nearly as large: a greater value means that struct_size was not set.
constexpr std::size_t kMostBytes = 4096;

// Sizes of the first version of each struct.
constexpr std::size_t kFirstTensor = offsetof(sirtaki_tensor, cuda_stream);
constexpr std::size_t kFirstInit = offsetof(sirtaki_init_args, interrupted);
constexpr std::size_t kFirstStream = offsetof(sirtaki_stream_args, prescale);
constexpr std::size_t kFirstLocal = offsetof(sirtaki_local_args, buffer_count);
constexpr std::size_t kFirstLocalStep = offsetof(sirtaki_local_step_args, share);
constexpr std::size_t kFirstForecast = offsetof(sirtaki_forecast_args, local) + sizeof(void*);
constexpr std::size_t kFirstOutcome = offsetof(sirtaki_local_outcome, equalize_optimizer);

// Sizes within a request: the part before its tensors, and the part after them in this and in the first version.
constexpr std::size_t kRequestHead = offsetof(sirtaki_request_args, input);
constexpr std::size_t kRequestTail = offsetof(sirtaki_request_args, reduce_op);
constexpr std::size_t kRequestTailBytes = sizeof(sirtaki_request_args) - kRequestTail;
constexpr std::size_t kFirstRequestTail = offsetof(sirtaki_request_args, prescale) - kRequestTail;

static_assert(sizeof(sirtaki_tensor) % alignof(sirtaki_tensor) == 0 && std::is_trivially_copyable_v<sirtaki_tensor>);
static_assert(kRequestTail == kRequestHead + 2 * sizeof(sirtaki_tensor));

const std::byte* bytes_of(const void* given) {
  return static_cast<const std::byte*>(given);
}

std::uint32_t size_at(const void* given) {
  std::uint32_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  return size;
}

Result<std::size_t> bounded_size(const void* given, std::size_t least, std::size_t known, const char* name) {
  const std::size_t size = size_at(given);
  if (size < least || size > kMostBytes) {
    return invalid_argument(std::string(name) + ".struct_size is " + std::to_string(size) + ", expected sizeof(" +
                            name + "), which is " + std::to_string(known) + " in this version and never below " +
                            std::to_string(least) + "; set it before the call");
  }
  return size;
}

Status check_tail(const std::byte* from, const std::byte* to, std::size_t known, const char* name) {
  if (std::all_of(from, to, [](std::byte byte) { return byte == std::byte{0}; })) {
    return {};
  }
  return {Code::kUnsupported, std::string(name) + " uses a field that this library, whose struct has " +
                                  std::to_string(known) +
                                  " bytes, does not know: the program was built with the sirtaki.h of a newer version. "
                                  "Update the library, or set the fields that are new to zero"};
}

}  // namespace

Result<std::size_t> check_struct_size(const void* given, std::size_t least, std::size_t known, const char* name) {
  SRT_ASSIGN(const std::size_t size, bounded_size(given, least, known, name));
  if (size > known) {
    SRT_TRY(check_tail(bytes_of(given) + known, bytes_of(given) + size, known, name));
  }
  return size;
}

void copy_known(const void* given, std::size_t size, void* fields, std::size_t known) {
  std::memcpy(fields, given, std::min(size, known));
}

Result<sirtaki_tensor> known_tensor(const void* given) {
  return known_fields(given, sirtaki_tensor{}, kFirstTensor, "sirtaki_tensor");
}

Result<sirtaki_tensor> tensor_at(const sirtaki_tensor* tensors, int index) {
  const std::size_t size = size_at(tensors);
  const std::byte* given = bytes_of(tensors) + static_cast<std::size_t>(index) * size;
  // Check the size of the first tensor before it leads to the second one.
  SRT_TRY(check_struct_size(tensors, kFirstTensor, sizeof(sirtaki_tensor), "sirtaki_tensor").status());
  if (size_at(given) != size) {
    return invalid_argument("tensors[" + std::to_string(index) + "].struct_size is " + std::to_string(size_at(given)) +
                            " and tensors[0].struct_size is " + std::to_string(size) +
                            "; set it to sizeof(sirtaki_tensor) in all of them");
  }
  return known_tensor(given);
}

Result<sirtaki_request_args> known_request(const void* given) {
  constexpr const char* kName = "sirtaki_request_args";
  sirtaki_request_args out{};
  out.prescale = 1.0;
  out.postscale = 1.0;
  constexpr std::size_t kFirstRequest = kRequestHead + 2 * kFirstTensor + kFirstRequestTail;
  SRT_ASSIGN(const std::size_t size, bounded_size(given, kFirstRequest, sizeof(out), kName));
  const std::byte* input = bytes_of(given) + kRequestHead;
  // A barrier uses no tensor, and programs built with the first versions leave its size 0.
  const std::size_t stated = size_at(input);
  const std::size_t tensor = stated == 0 ? sizeof(sirtaki_tensor) : stated;
  const std::size_t tail = kRequestHead + 2 * tensor;
  if (tensor > kMostBytes || size < tail + kFirstRequestTail) {
    return invalid_argument(std::string(kName) + ".struct_size is " + std::to_string(size) +
                            ", too small for two tensors of input.struct_size = " + std::to_string(stated) +
                            " bytes; set both to the sizes of their structs before the call");
  }
  copy_known(given, size, &out, kRequestHead);
  if (stated != 0) {
    SRT_TRY(check_struct_size(input, kFirstTensor, sizeof(sirtaki_tensor), "sirtaki_tensor").status());
  }
  const std::byte* output = input + tensor;
  const std::size_t written = size_at(output);
  if (written != 0 && written != tensor) {
    return invalid_argument("output.struct_size is " + std::to_string(written) + " and input.struct_size is " +
                            std::to_string(stated) + "; set both to sizeof(sirtaki_tensor)");
  }
  if (written > sizeof(sirtaki_tensor)) {
    SRT_TRY(check_tail(output + sizeof(sirtaki_tensor), output + tensor, sizeof(sirtaki_tensor), "sirtaki_tensor"));
  }
  copy_known(input, tensor, &out.input, sizeof(sirtaki_tensor));
  copy_known(output, tensor, &out.output, sizeof(sirtaki_tensor));
  const std::uint32_t normal = sizeof(sirtaki_tensor);
  out.input.struct_size = stated == 0 ? 0 : normal;
  out.output.struct_size = written == 0 ? 0 : normal;
  copy_known(bytes_of(given) + tail, size - tail, &out.reduce_op, kRequestTailBytes);
  if (size - tail > kRequestTailBytes) {
    SRT_TRY(check_tail(bytes_of(given) + tail + kRequestTailBytes, bytes_of(given) + size, sizeof(out), kName));
  }
  out.struct_size = sizeof(out);
  return out;
}

Result<sirtaki_init_args> known_init(const void* given) {
  return known_fields(given, sirtaki_init_args{}, kFirstInit, "sirtaki_init_args");
}

Result<sirtaki_stream_args> known_stream(const void* given) {
  sirtaki_stream_args absent{};
  absent.prescale = 1.0;
  absent.postscale = 1.0;
  return known_fields(given, absent, kFirstStream, "sirtaki_stream_args");
}

Result<sirtaki_local_args> known_local(const void* given) {
  return known_fields(given, sirtaki_local_args{}, kFirstLocal, "sirtaki_local_args");
}

Result<sirtaki_local_step_args> known_local_step(const void* given) {
  sirtaki_local_step_args absent{};
  absent.share = 1;
  absent.steps_left = -1;
  return known_fields(given, absent, kFirstLocalStep, "sirtaki_local_step_args");
}

Result<sirtaki_forecast_args> known_forecast(const void* given) {
  return known_fields(given, sirtaki_forecast_args{}, kFirstForecast, "sirtaki_forecast_args");
}

Status write_outcome(const sirtaki_local_outcome& from, sirtaki_local_outcome* to) {
  SRT_ASSIGN(const std::size_t size, bounded_size(to, kFirstOutcome, sizeof(from), "sirtaki_local_outcome"));
  auto* out = reinterpret_cast<std::byte*>(to);
  constexpr std::size_t kHead = sizeof(to->struct_size);
  std::memset(out + kHead, 0, size - kHead);
  std::memcpy(out + kHead, reinterpret_cast<const std::byte*>(&from) + kHead, std::min(size, sizeof(from)) - kHead);
  return {};
}

}  // namespace sirtaki::adapters
