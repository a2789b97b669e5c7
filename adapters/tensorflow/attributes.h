// Attributes: reads the attributes of an operation. Keeps the first failure and reports it to TensorFlow once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "adapters/tensorflow/status.h"

namespace sirtaki_tensorflow {

class Attributes {
 public:
  explicit Attributes(TfConstruction* construction) : construction_(construction) {}

  std::string text(const char* name);
  std::int64_t integer(const char* name);
  // Reads a number from a text: TensorFlow's own attributes know float32 only.
  double number(const char* name);
  // Reads integers separated by commas.
  std::vector<std::int32_t> integers(const char* name);
  // Returns false if construction has failed; the failure has been reported to TensorFlow.
  bool ok();

 private:
  TfConstruction* const construction_;
  std::string problem_;
};

}  // namespace sirtaki_tensorflow
