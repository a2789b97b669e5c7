#include "adapters/python/local_sgd.h"

#include <Python.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "adapters/c/sirtaki.h"
#include "adapters/python/calls.h"

namespace sirtaki_python {
namespace {

// (name, memory)
using PyParameter = std::tuple<std::string, PyTensor>;
// (name, memory, merge rule, index of the buffer with the means or -1)
using PyBuffer = std::tuple<std::string, PyTensor, int, int>;
// (fragments, merge, outer, outer_lr, outer_momentum, codec or None, ranks or None)
using PyHow =
    std::tuple<int, int, int, double, double, std::optional<std::string>, std::optional<std::vector<std::int32_t>>>;
// (average_gradients, reset_optimizer, equalize_optimizer, donor, decisions, steps, delay, model_changed)
using PyOutcome = std::tuple<bool, bool, bool, int, int, std::int64_t, std::int64_t, bool>;

// Arrays for the C interface, which point into the added tensors.
struct Described {
  std::vector<const char*> names;
  std::vector<sirtaki_tensor> memory;

  void add(const std::string& name, const PyTensor& tensor) {
    names.push_back(name.c_str());
    memory.push_back(to_tensor(tensor));
  }
  std::int32_t count() const { return static_cast<std::int32_t>(memory.size()); }
};

// Local updates of one optimizer. Keeps no description of the tensors; the caller owns their memory and keeps it until
// close().
class Local {
 public:
  Local(const std::string& name, const std::string& interval, std::optional<nb::callable> steps,
        const std::vector<PyParameter>& parameters, const std::vector<PyBuffer>& buffers, const PyHow& how)
      : steps_(std::move(steps)) {
    Described model;
    for (const auto& [parameter, tensor] : parameters) {
      model.add(parameter, tensor);
    }
    Described state;
    std::vector<std::int32_t> rules;
    std::vector<std::int32_t> means;
    for (const auto& [buffer, tensor, rule, mean] : buffers) {
      state.add(buffer, tensor);
      rules.push_back(rule);
      means.push_back(mean);
    }
    const auto& [fragments, merge, outer, outer_lr, outer_momentum, codec, ranks] = how;
    sirtaki_local_args args{};
    args.struct_size = sizeof(args);
    args.name = name.c_str();
    args.interval = interval.c_str();
    args.steps = steps_ ? &Local::next_steps : nullptr;
    args.context = this;
    args.count = model.count();
    args.names = model.names.data();
    args.tensors = model.memory.data();
    args.buffer_count = state.count();
    args.buffer_names = state.names.data();
    args.buffers = state.memory.data();
    args.buffer_rules = rules.data();
    args.buffer_means = means.data();
    args.fragments = fragments;
    args.merge = merge;
    args.outer = outer;
    args.outer_lr = outer_lr;
    args.outer_momentum = outer_momentum;
    args.codec = codec ? codec->c_str() : nullptr;
    if (ranks) {
      args.ranks = ranks->data();
      args.ranks_count = static_cast<std::int32_t>(ranks->size());
    }
    blocking([&] { return sirtaki_local_open(&args, &local_); });
  }
  ~Local() { close(); }
  Local(const Local&) = delete;
  Local& operator=(const Local&) = delete;

  PyOutcome start() {
    return run([&](sirtaki_local_outcome* outcome) { return sirtaki_local_start(local_, outcome); });
  }
  PyOutcome step(double lr, std::optional<double> loss, std::int64_t share, std::int64_t steps_left,
                 std::int64_t waited_ns) {
    sirtaki_local_step_args args{};
    args.struct_size = sizeof(args);
    args.lr = lr;
    args.loss = loss.value_or(0);
    args.has_loss = loss ? 1 : 0;
    args.share = share;
    args.steps_left = steps_left;
    args.waited_ns = waited_ns;
    return run([&](sirtaki_local_outcome* outcome) { return sirtaki_local_step(local_, &args, outcome); });
  }
  PyOutcome drain() {
    return run([&](sirtaki_local_outcome* outcome) { return sirtaki_local_drain(local_, outcome); });
  }
  PyOutcome synchronous(bool wanted) {
    return run(
        [&](sirtaki_local_outcome* outcome) { return sirtaki_local_synchronous(local_, wanted ? 1 : 0, outcome); });
  }
  // Writes an anchor to `address`, contiguous float32.
  void anchor(std::int32_t index, std::uintptr_t address, std::int64_t numel) {
    check(sirtaki_local_anchor(local_, index, reinterpret_cast<float*>(address), numel));
  }
  nb::bytes save() {
    std::int64_t size = 0;
    check(sirtaki_local_save(local_, nullptr, 0, &size));
    std::string out(static_cast<std::size_t>(size), '\0');
    check(sirtaki_local_save(local_, out.data(), size, &size));
    return nb::bytes(out.data(), out.size());
  }
  void restore(const nb::bytes& saved) {
    check(sirtaki_local_restore(local_, saved.c_str(), static_cast<std::int64_t>(saved.size())));
  }
  std::string stats_json() { return json_or_raise(sirtaki_local_stats_json(local_)); }
  void close() {
    const nb::gil_scoped_release nogil;
    sirtaki_local_close(std::exchange(local_, nullptr));
  }

 private:
  // Calls the function of the program. Its exception stays set, and check() raises it.
  static std::int64_t next_steps(void* context, const char* round) {
    const nb::gil_scoped_acquire gil;
    try {
      return nb::cast<std::int64_t>((*static_cast<Local*>(context)->steps_)(round));
    } catch (nb::python_error& error) {
      error.restore();
    } catch (const nb::cast_error&) {
      PyErr_SetString(PyExc_TypeError, "the interval's function must return a number of steps, an int");
    }
    return -1;
  }

  template <class Call>
  static PyOutcome run(Call&& call) {
    sirtaki_local_outcome out{};
    out.struct_size = sizeof(out);
    blocking([&] { return call(&out); });
    return {out.average_gradients != 0,
            out.reset_optimizer != 0,
            out.equalize_optimizer != 0,
            out.donor,
            out.decisions,
            out.steps,
            out.delay,
            out.model_changed != 0};
  }

  std::optional<nb::callable> steps_;
  sirtaki_local local_ = nullptr;
};

}  // namespace

void define_local(nb::module_& m) {
  nb::class_<Local>(m, "Local")
      .def(nb::init<const std::string&, const std::string&, std::optional<nb::callable>,
                    const std::vector<PyParameter>&, const std::vector<PyBuffer>&, const PyHow&>(),
           nb::arg("name"), nb::arg("interval"), nb::arg("steps").none(), nb::arg("parameters"), nb::arg("buffers"),
           nb::arg("how"))
      .def("start", &Local::start)
      .def("step", &Local::step, nb::arg("lr"), nb::arg("loss").none(), nb::arg("share"), nb::arg("steps_left"),
           nb::arg("waited_ns"))
      .def("drain", &Local::drain)
      .def("synchronous", &Local::synchronous, nb::arg("wanted"))
      .def("anchor", &Local::anchor, nb::arg("index"), nb::arg("address"), nb::arg("numel"))
      .def("save", &Local::save)
      .def("restore", &Local::restore, nb::arg("saved"))
      .def("stats_json", &Local::stats_json)
      .def("close", &Local::close);
}

}  // namespace sirtaki_python
