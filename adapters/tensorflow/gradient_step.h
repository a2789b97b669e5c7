// StepTable, NumberOp, ReadyOp, FinishOp: one step of a stream in TensorFlow's graph.
//
// A gradient is given to the stream by an operation of its own as soon as TensorFlow has computed it, which does not
// wait; one operation behind all of them ends the step and waits. The table holds the memory that the runtime works on
// between the two. A number, which every execution gets anew, says that they belong together: a step that the program
// leaves half-way is given up on all ranks when the next begins.
// Threads: any; operations of one stream take turns.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "adapters/tensorflow/attributes.h"
#include "adapters/tensorflow/call.h"

namespace sirtaki_tensorflow {

// The gradients of a stream's current step.
struct Step {
  std::mutex mutex;
  std::vector<Tensor> held;  // by place in the stream; empty: not ready yet
  std::int64_t number = 0;   // of the execution that `held` is of
  bool finishing = false;
};

// The steps of all streams of the process.
class StepTable {
 public:
  static StepTable& instance();
  std::shared_ptr<Step> of(sirtaki_stream stream, int count);
  std::int64_t next_number();
  // The session has ended: nobody works on memory any more.
  void clear();

 private:
  std::mutex mutex_;
  std::unordered_map<sirtaki_stream, std::shared_ptr<Step>> steps_;  // guarded by mutex_
  std::int64_t last_number_ = 0;                                     // guarded by mutex_
};

class NumberOp {
 public:
  explicit NumberOp(Attributes& /*attributes*/) {}
  // A number that no other execution has. Ends the call before it returns.
  void start(std::unique_ptr<Call> call) const;
};

class ReadyOp {
 public:
  explicit ReadyOp(Attributes& attributes);
  // Ends the call before it returns.
  void start(std::unique_ptr<Call> call) const;

 private:
  Failure ready(const Call& call) const;
  Failure join(Step& step, std::int64_t number) const;

  const sirtaki_stream stream_;
  const int index_;
  const int count_;
};

class FinishOp {
 public:
  explicit FinishOp(Attributes& attributes);
  // Its inputs are the outputs of all ReadyOps by place, as are its outputs, and the number.
  void start(std::unique_ptr<Call> call) const;

 private:
  struct Running;
  Failure finish(Step& step, std::int64_t number) const;

  const sirtaki_stream stream_;
};

}  // namespace sirtaki_tensorflow
