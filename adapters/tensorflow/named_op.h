// NamedOp: an operation by name as a kernel, with one input for each tensor of a group.
//
// Owned by TensorFlow, shared by all calls, constant after its construction. Threads: any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "adapters/tensorflow/attributes.h"
#include "adapters/tensorflow/call.h"

namespace sirtaki_tensorflow {

class NamedOp {
 public:
  NamedOp(sirtaki_op kind, Attributes& attributes);
  // Starts the operation. The call ends on the completing thread, or here if the operation cannot be started.
  void start(std::unique_ptr<Call> call) const;

 private:
  struct Running;
  Failure submit(Running& running) const;
  Failure add(Running& running, int index) const;
  Failure add_splits(Running& running) const;
  static void finish(std::unique_ptr<Running> running);
  static Failure take_result(const Running& running, std::size_t index);

  const sirtaki_op kind_;
  std::vector<std::string> names_;
  std::vector<std::int32_t> ranks_;
  std::int32_t reduce_op_ = SIRTAKI_SUM;
  std::int32_t root_ = 0;
  std::int32_t priority_ = 0;
  double prescale_ = 1.0;
  double postscale_ = 1.0;
};

}  // namespace sirtaki_tensorflow
