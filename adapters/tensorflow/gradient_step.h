// StepTable, NumberOp, ReadyOp, FinishOp: one step of a stream in TensorFlow's graph.
//
// For each gradient, one operation gives the gradient to the stream as soon as TensorFlow has computed it, and does not
// wait. After all of them, one operation ends the step and waits. Between the two, the table holds the tensors that the
// runtime works on. A number that is new for every execution connects the operations of a step: if the program abandons
// a step, the step is given up on all ranks when the next one begins.
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
  std::vector<Tensor> held;  // index: place in the stream; empty: not ready yet
  std::int64_t number = 0;   // number of the execution to which `held` belongs
  bool finishing = false;
};

// The steps of all streams of the process.
class StepTable {
 public:
  static StepTable& instance();
  std::shared_ptr<Step> of(sirtaki_stream stream, int count);
  std::int64_t next_number();
  // Makes operations that were traced with the id `traced` use `stream`, which their function has opened since.
  void renew(sirtaki_stream traced, sirtaki_stream stream);
  // Returns the stream that operations use which were traced for `traced`.
  sirtaki_stream current(sirtaki_stream traced);
  // Drops all steps and renewals. The session must have ended, so that it uses no tensor any more.
  void clear();

 private:
  std::mutex mutex_;
  std::unordered_map<sirtaki_stream, std::shared_ptr<Step>> steps_;  // guarded by mutex_
  std::unordered_map<sirtaki_stream, sirtaki_stream> renewed_;       // guarded by mutex_
  std::int64_t last_number_ = 0;                                     // guarded by mutex_
};

class NumberOp {
 public:
  explicit NumberOp(Attributes& /*attributes*/) {}
  // Outputs a number that no other execution has. Ends the call before it returns.
  void start(std::unique_ptr<Call> call) const;
};

class ReadyOp {
 public:
  explicit ReadyOp(Attributes& attributes);
  // Gives one gradient to its stream. Ends the call before it returns.
  void start(std::unique_ptr<Call> call) const;

 private:
  Failure ready(const Call& call) const;
  Failure join(sirtaki_stream stream, Step& step, std::int64_t number) const;

  const sirtaki_stream traced_;
  const int index_;
  const int count_;
};

class FinishOp {
 public:
  explicit FinishOp(Attributes& attributes);
  // Inputs are the outputs of all ReadyOps by place, and the number; outputs are the reduced gradients by place.
  void start(std::unique_ptr<Call> call) const;

 private:
  struct Running;
  static Failure finish(sirtaki_stream stream, Step& step, std::int64_t number);

  const sirtaki_stream traced_;
};

}  // namespace sirtaki_tensorflow
