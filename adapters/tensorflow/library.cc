// Library for tf.load_op_library(): operations and kernels, registered while the library is being loaded, and a few
// functions for the Python package. TensorFlow makes wrappers only for operations that are registered in that moment.
#include <latch>
#include <string>

#include "adapters/tensorflow/gradient_step.h"
#include "adapters/tensorflow/named_op.h"
#include "adapters/tensorflow/shapes.h"

namespace sirtaki_tensorflow {
namespace {

// ---- kernels ----

template <sirtaki_op kind>
struct Named : NamedOp {
  explicit Named(Attributes& attributes) : NamedOp(kind, attributes) {}
};

template <class Op>
void* make(TfConstruction* construction) {
  Attributes attributes(construction);
  auto op = std::make_unique<Op>(attributes);
  return attributes.ok() ? op.release() : nullptr;
}

template <class Op>
void destroy(void* op) {
  const std::unique_ptr<Op> owned(static_cast<Op*>(op));
}

template <class Op>
void start(void* op, TfContext* context, TfDone* done) {
  static_cast<const Op*>(op)->start(std::make_unique<Call>(context, Done(done)));
}

template <class Op>
void start_and_wait(void* op, TfContext* context) {
  std::latch over(1);
  static_cast<const Op*>(op)->start(std::make_unique<Call>(context, Done([&over] { over.count_down(); })));
  over.wait();
}

// ---- registration ----

// Registers one operation or kernel after the other; keeps the first problem.
class Registrar {
 public:
  const std::string& problem() const { return problem_; }

  using Shapes = void (*)(TfShapeContext*, TfStatus*);

  template <class Op>
  void add(const char* name, const std::vector<const char*>& arguments, Shapes shapes) {
    define(name, arguments, shapes);
    TfKernelBuilder* const kernel =
        asynchronous() ? tf().TF_NewAsyncKernelBuilder(name, "CPU", make<Op>, start<Op>, destroy<Op>)
                       : tf().TF_NewKernelBuilder(name, "CPU", make<Op>, start_and_wait<Op>, destroy<Op>);
    const ScopedStatus status;
    tf().TF_RegisterKernelBuilder(name, kernel, status.get());
    keep(name, status);
  }

 private:
  // Arguments begin with "in ", "out " or "attr ".
  void define(const char* name, const std::vector<const char*>& arguments, Shapes shapes) {
    TfOpBuilder* const op = tf().TF_NewOpDefinitionBuilder(name);
    for (const std::string argument : arguments) {
      const std::string spec = argument.substr(argument.find(' ') + 1);
      if (argument.starts_with("in ")) {
        tf().TF_OpDefinitionBuilderAddInput(op, spec.c_str());
      } else if (argument.starts_with("out ")) {
        tf().TF_OpDefinitionBuilderAddOutput(op, spec.c_str());
      } else {
        tf().TF_OpDefinitionBuilderAddAttr(op, spec.c_str());
      }
    }
    // Stateless operations would be merged, pruned or run once at compile time, and ranks would wait for each other for
    // ever.
    tf().TF_OpDefinitionBuilderSetIsStateful(op, true);
    tf().TF_OpDefinitionBuilderSetShapeInferenceFunction(op, shapes);
    const ScopedStatus status;
    tf().TF_RegisterOpDefinition(op, status.get());
    keep(name, status);
  }

  void keep(const char* name, const ScopedStatus& status) {
    if (!status.ok() && problem_.empty()) {
      problem_ = std::string(name) + ": " + status.message();
    }
  }

  std::string problem_;
};

std::string register_all() {
  if (!tf().problem.empty()) {
    return tf().problem;
  }
  Registrar registrar;
  const auto names = "attr tensor_names: string";
  const auto ranks = "attr ranks: string";
  const auto priority = "attr priority: int";
  const auto reduce = "attr reduce_op: int";
  const auto before = "attr prescale: string";
  const auto after = "attr postscale: string";
  registrar.add<Named<SIRTAKI_ALLREDUCE>>(
      "SirtakiAllreduce",
      {"in tensors: T", "out reduced: T", "attr T: list(type)", names, ranks, priority, reduce, before, after},
      shapes_as_given);
  registrar.add<Named<SIRTAKI_ALLGATHER>>(
      "SirtakiAllgather", {"in tensors: T", "out gathered: T", "attr T: list(type)", names, ranks, priority},
      shapes_of_rows);
  registrar.add<Named<SIRTAKI_BROADCAST>>(
      "SirtakiBroadcast",
      {"in tensors: T", "out received: T", "attr T: list(type)", names, ranks, priority, "attr root: int"},
      shapes_as_given);
  registrar.add<Named<SIRTAKI_ALLTOALL>>("SirtakiAlltoall",
                                         {"in tensor: T", "in splits: int64", "out rows: T", "out received: int32",
                                          "attr T: type", names, ranks, priority},
                                         shapes_of_exchange);
  registrar.add<Named<SIRTAKI_REDUCESCATTER>>(
      "SirtakiReducescatter",
      {"in tensors: T", "out blocks: T", "attr T: list(type)", names, ranks, priority, reduce, before, after},
      shapes_of_rows);
  registrar.add<Named<SIRTAKI_BARRIER>>("SirtakiBarrier", {names, ranks, priority}, shapes_of_nothing);
  registrar.add<NumberOp>("SirtakiStepNumber", {"out number: int64"}, shapes_of_number);
  registrar.add<ReadyOp>("SirtakiReady",
                         {"in gradient: T", "in number: int64", "out token: T", "attr T: type", "attr stream: int",
                          "attr index: int", "attr count: int"},
                         shapes_of_ready);
  registrar.add<FinishOp>(
      "SirtakiFinish", {"in tokens: T", "in number: int64", "out reduced: T", "attr T: list(type)", "attr stream: int"},
      shapes_of_finish);
  return registrar.problem();
}

// A constructor function would run before TensorFlow watches registrations; the last static object of the file does
// not.
const std::string kProblem = register_all();

}  // namespace
}  // namespace sirtaki_tensorflow

extern "C" {

// Returns "", or the reason why there are no operations. Used by sirtaki/tensorflow/_library.py.
SIRTAKI_API const char* sirtaki_tensorflow_problem(void) {
  return sirtaki_tensorflow::kProblem.c_str();
}

// Returns 1 if operations wait without blocking a thread of TensorFlow; 0: each one blocks a thread.
SIRTAKI_API int sirtaki_tensorflow_asynchronous(void) {
  return sirtaki_tensorflow::asynchronous() ? 1 : 0;
}

// Makes operations that were traced with the id `traced`, which is below those of streams, use `stream`.
SIRTAKI_API void sirtaki_tensorflow_renew(sirtaki_stream traced, sirtaki_stream stream) {
  sirtaki_tensorflow::StepTable::instance().renew(traced, stream);
}

// Drops the state of all streams. Call it after every sirtaki_shutdown().
SIRTAKI_API void sirtaki_tensorflow_forget(void) {
  sirtaki_tensorflow::StepTable::instance().clear();
}

}  // extern "C"
