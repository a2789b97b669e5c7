// Done: how an asynchronous kernel tells TensorFlow that it is over.
//
// TensorFlow hands out the address of a std::function that lies on its own stack and dies when the kernel's function
// returns, so the function is moved out first. That leans on libstdc++'s layout; asynchronous() looks for it at load.
// Threads: any, one at a time.
#pragma once

#include <functional>

#include "adapters/tensorflow/tf_types.h"

namespace sirtaki_tensorflow {

class Done {
 public:
  // Takes over TensorFlow's function.
  explicit Done(TfDone* raw);
  // For kernels that block: runs `over` instead.
  explicit Done(std::function<void()> over) : over_(std::move(over)) {}
  // Once, as the last thing done with the context, without a lock held.
  void run();

 private:
  std::function<void()> over_;
};

// Whether Done(TfDone*) can be trusted with this TensorFlow: its callbacks are std::functions of the same library, and
// it runs one of ours.
bool asynchronous();

}  // namespace sirtaki_tensorflow
