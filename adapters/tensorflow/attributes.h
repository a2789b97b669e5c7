// Attributes: reads what an operation was made with. The first failure stays, and is told to TensorFlow once.
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
  // A text that is a number: TensorFlow's own attributes know float32 only.
  double number(const char* name);
  // Integers with commas between them.
  std::vector<std::int32_t> integers(const char* name);
  // False: construction has failed, and TensorFlow knows.
  bool ok();

 private:
  TfConstruction* const construction_;
  std::string problem_;
};

}  // namespace sirtaki_tensorflow
