#include "adapters/tensorflow/attributes.h"

#include <charconv>

namespace sirtaki_tensorflow {

std::string Attributes::text(const char* name) {
  const ScopedStatus status;
  std::int32_t list = 0;
  std::int32_t bytes = 0;
  tf().TF_OpKernelConstruction_GetAttrSize(construction_, name, &list, &bytes, status.get());
  std::string value;
  if (status.ok() && bytes > 0) {
    value.resize(static_cast<std::size_t>(bytes));
    tf().TF_OpKernelConstruction_GetAttrString(construction_, name, value.data(), value.size(), status.get());
  }
  if (!status.ok() && problem_.empty()) {
    problem_ = status.message();
  }
  return value;
}

std::int64_t Attributes::integer(const char* name) {
  const ScopedStatus status;
  std::int64_t value = 0;
  tf().TF_OpKernelConstruction_GetAttrInt64(construction_, name, &value, status.get());
  if (!status.ok() && problem_.empty()) {
    problem_ = status.message();
  }
  return value;
}

double Attributes::number(const char* name) {
  const std::string value = text(name);
  double number = 0.0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if ((error != std::errc() || end != value.data() + value.size()) && problem_.empty()) {
    problem_ = std::string(name) + " is '" + value + "', must be a number";
  }
  return number;
}

std::vector<std::int32_t> Attributes::integers(const char* name) {
  const std::string value = text(name);
  std::vector<std::int32_t> numbers;
  const char* cursor = value.data();
  const char* const end = cursor + value.size();
  while (cursor < end) {
    std::int32_t number = 0;
    const auto [next, error] = std::from_chars(cursor, end, number);
    if (error != std::errc() || (next != end && *next != ',')) {
      if (problem_.empty()) {
        problem_ = std::string(name) + " is '" + value + "', must be integers with commas between them";
      }
      return {};
    }
    numbers.push_back(number);
    cursor = next == end ? end : next + 1;
  }
  return numbers;
}

bool Attributes::ok() {
  if (problem_.empty()) {
    return true;
  }
  const ScopedStatus status;
  tf().TF_SetStatus(status.get(), kTfInvalidArgument, problem_.c_str());
  tf().TF_OpKernelConstruction_Failure(construction_, status.get());
  return false;
}

}  // namespace sirtaki_tensorflow
