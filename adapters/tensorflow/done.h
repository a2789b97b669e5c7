// Done: the callback by which an asynchronous kernel reports its end to TensorFlow.
//
// TensorFlow passes the address of a std::function on its own stack, which ceases to exist when the function of the
// kernel returns. Done therefore moves the std::function out first. This relies on the layout of libstdc++, which
// asynchronous() checks when the library is loaded.
// Threads: any, one at a time.
#pragma once

#include <functional>

#include "adapters/tensorflow/tf_types.h"

namespace sirtaki_tensorflow {

class Done {
 public:
  // Moves TensorFlow's function out of `raw`.
  explicit Done(TfDone* raw);
  // Runs `over` instead, for kernels that block.
  explicit Done(std::function<void()> over) : over_(std::move(over)) {}
  // Reports the end. Call it once, as the last use of the context, without a lock held.
  void run();

 private:
  std::function<void()> over_;
};

// Returns whether Done(TfDone*) works with this TensorFlow: its callbacks are std::functions of the same library, and
// it can run one of ours.
bool asynchronous();

}  // namespace sirtaki_tensorflow
