// sirtaki._core: the C interface for Python.
//
// For: the modules of the package sirtaki, which make all decisions. Calls that can block release the GIL, and only the
// calling thread takes it again (calls.h).
#include <Python.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "adapters/c/sirtaki.h"
#include "adapters/python/calls.h"
#include "adapters/python/local_sgd.h"
#include "adapters/python/sigterm.h"

namespace nb = nanobind;

namespace {

using sirtaki_python::blocking;
using sirtaki_python::check;
using sirtaki_python::configure;
using sirtaki_python::Dims;
using sirtaki_python::interrupted;
using sirtaki_python::json_or_raise;
using sirtaki_python::PyTensor;
using sirtaki_python::to_tensor;

// (op, name, input, output, reduce_op, root, prescale, postscale, splits, CUDA stream or 0, ranks, priority)
using PyRequest =
    std::tuple<int, std::optional<std::string>, std::optional<PyTensor>, std::optional<PyTensor>, int, int, double,
               double, std::optional<Dims>, std::uintptr_t, std::optional<std::vector<std::int32_t>>, int>;

sirtaki_request_args to_args(const PyRequest& request) {
  const auto& [op, name, input, output, reduce_op, root, prescale, postscale, splits, cuda_stream, ranks, priority] =
      request;
  sirtaki_request_args args{};
  args.struct_size = sizeof(args);
  args.op = op;
  args.name = name ? name->c_str() : nullptr;
  args.input = input ? to_tensor(*input) : sirtaki_tensor{};
  args.input.struct_size = sizeof(args.input);
  args.input.cuda_stream = reinterpret_cast<void*>(cuda_stream);
  args.output = output ? to_tensor(*output) : sirtaki_tensor{};
  args.reduce_op = reduce_op;
  args.root = root;
  args.prescale = prescale;
  args.postscale = postscale;
  if (splits) {
    // A null pointer means no splits, so an empty list needs an address.
    static const std::int64_t kNone = 0;
    args.splits = splits->empty() ? &kNone : splits->data();
    args.splits_count = static_cast<std::int32_t>(splits->size());
  }
  if (ranks) {
    static const std::int32_t kNobody = 0;
    args.ranks = ranks->empty() ? &kNobody : ranks->data();
    args.ranks_count = static_cast<std::int32_t>(ranks->size());
  }
  args.priority = priority;
  return args;
}

void init(const std::optional<std::string>& options, int rank, int size, const std::optional<std::string>& rendezvous,
          const std::optional<std::string>& secret) {
  sirtaki_init_args args{};
  args.struct_size = sizeof(args);
  args.options_toml = options ? options->c_str() : nullptr;
  args.interrupted = interrupted;
  args.rank = rank;
  args.size = size;
  args.rendezvous = rendezvous ? rendezvous->c_str() : nullptr;
  args.secret_hex = secret ? secret->c_str() : nullptr;
  blocking([&] { return sirtaki_init(&args); });
}

std::tuple<int, std::string> host(int size, const std::string& bind_address) {
  std::uint16_t port = 0;
  std::array<char, 65> secret{};
  blocking([&] { return sirtaki_host(size, bind_address.c_str(), &port, secret.data()); });
  return {int{port}, std::string(secret.data())};
}

std::tuple<std::string, std::string> key_pair() {
  std::array<char, 65> own{};
  std::array<char, 65> shown{};
  check(sirtaki_key_pair(own.data(), shown.data()));
  return {std::string(own.data()), std::string(shown.data())};
}

std::string shared_key(const std::string& own, const std::string& shown) {
  std::array<char, 65> key{};
  check(sirtaki_shared_key(own.c_str(), shown.c_str(), key.data()));
  return {key.data()};
}

std::vector<sirtaki_request> submit(const std::vector<PyRequest>& requests) {
  std::vector<sirtaki_request_args> args;
  args.reserve(requests.size());
  for (const PyRequest& request : requests) {
    args.push_back(to_args(request));
  }
  std::vector<sirtaki_request> ids(requests.size());
  blocking([&] { return sirtaki_submit_group(args.data(), static_cast<int>(args.size()), ids.data()); });
  return ids;
}

bool poll(sirtaki_request request) {
  int done = 0;
  check(sirtaki_poll(request, &done));
  return done != 0;
}

// Owner of the memory of a result: releases the request with the last array over that memory.
struct ResultOwner {
  sirtaki_request request;
};

// Returns (bytes or None if empty, dims, received splits or None). Takes over the release of the request.
std::tuple<nb::object, Dims, std::optional<Dims>> result(sirtaki_request request, std::int64_t item_size, int size) {
  sirtaki_tensor output{};
  output.struct_size = sizeof(output);
  const std::int64_t* received = nullptr;
  check(sirtaki_result(request, &output, &received));
  Dims dims(output.dims, output.dims + output.ndim);
  std::optional<Dims> splits;
  if (received != nullptr) {
    splits.emplace(received, received + size);
  }
  std::int64_t bytes = item_size;
  for (const std::int64_t dim : dims) {
    bytes *= dim;
  }
  if (bytes == 0) {
    sirtaki_release(request);
    return {nb::none(), std::move(dims), std::move(splits)};
  }
  auto owned = std::make_unique<ResultOwner>(ResultOwner{request});
  const nb::capsule owner(owned.release(), [](void* pointer) noexcept {
    const std::unique_ptr<ResultOwner> self(static_cast<ResultOwner*>(pointer));
    sirtaki_release(self->request);
  });
  nb::ndarray<std::uint8_t, nb::shape<-1>, nb::device::cpu> array(output.data, {static_cast<std::size_t>(bytes)},
                                                                  owner);
  return {nb::cast(array, nb::rv_policy::reference), std::move(dims), std::move(splits)};
}

std::optional<std::vector<sirtaki_request>> wait_completions(int capacity, std::int64_t timeout_ms) {
  std::vector<sirtaki_request> requests(static_cast<std::size_t>(capacity));
  int count = 0;
  {
    const nb::gil_scoped_release nogil;
    count = sirtaki_wait_watched(requests.data(), capacity, timeout_ms);
  }
  if (count < 0) {
    return std::nullopt;
  }
  requests.resize(static_cast<std::size_t>(count));
  return requests;
}

// A stream with the same tensors every step. It keeps their descriptions, so that a step passes only addresses.
class Stream {
 public:
  Stream(const std::string& name, const std::vector<std::string>& names, std::vector<PyTensor> tensors,
         const std::optional<std::vector<std::int32_t>>& order,
         const std::tuple<int, double, double, std::optional<std::string>, std::int64_t>& how,
         const std::optional<std::vector<std::int32_t>>& ranks)
      : described_(std::move(tensors)) {
    std::vector<const char*> texts;
    for (std::size_t i = 0; i < described_.size(); ++i) {
      texts.push_back(names.at(i).c_str());
      tensors_.push_back(to_tensor(described_[i]));
    }
    const auto& [reduce_op, prescale, postscale, codec, first_step] = how;
    sirtaki_stream_args args{};
    args.struct_size = sizeof(args);
    args.name = name.c_str();
    args.count = static_cast<std::int32_t>(tensors_.size());
    args.names = texts.data();
    args.tensors = tensors_.data();
    args.order = order ? order->data() : nullptr;
    args.reduce_op = reduce_op;
    args.prescale = prescale;
    args.postscale = postscale;
    args.codec = codec ? codec->c_str() : nullptr;
    args.first_step = first_step;
    if (ranks) {
      args.ranks = ranks->data();
      args.ranks_count = static_cast<std::int32_t>(ranks->size());
    }
    blocking([&] { return sirtaki_stream_open(&args, &stream_); });
  }

  void ready(std::size_t index, std::uintptr_t address, bool absent, std::uintptr_t cuda_stream) {
    sirtaki_tensor tensor = tensors_.at(index);
    tensor.data = reinterpret_cast<void*>(address);
    tensor.cuda_stream = reinterpret_cast<void*>(cuda_stream);
    check(sirtaki_stream_ready(stream_, static_cast<std::int32_t>(index), &tensor, absent ? 1 : 0));
  }
  void finish() { check(sirtaki_stream_finish(stream_)); }
  void wait(std::int64_t timeout_ms) {
    blocking([&] { return sirtaki_stream_wait(stream_, timeout_ms); });
  }
  bool committed() const {
    int committed = 0;
    check(sirtaki_stream_committed(stream_, &committed));
    return committed != 0;
  }
  void wait_tensors(const std::vector<std::int32_t>& indices, std::int64_t timeout_ms) {
    const auto count = static_cast<std::int32_t>(indices.size());
    blocking([&] { return sirtaki_stream_wait_tensors(stream_, indices.data(), count, timeout_ms); });
  }
  // Returns 0, SIRTAKI_GRADIENT or SIRTAKI_STEP for each tensor.
  std::vector<int> used() {
    std::vector<std::uint8_t> flags(tensors_.size());
    check(sirtaki_stream_used(stream_, flags.data()));
    return {flags.begin(), flags.end()};
  }
  void abort(const std::string& why) {
    blocking([&] { return sirtaki_stream_abort(stream_, why.c_str()); });
  }
  void close() {
    blocking([&] { return sirtaki_stream_close(stream_); });
  }
  // Copy a residual to or from `address`, contiguous float32.
  void residual(std::int32_t index, std::uintptr_t address, std::int64_t numel) {
    blocking([&] { return sirtaki_stream_residual(stream_, index, reinterpret_cast<float*>(address), numel); });
  }
  void set_residual(std::int32_t index, std::uintptr_t address, std::int64_t numel) {
    blocking(
        [&] { return sirtaki_stream_set_residual(stream_, index, reinterpret_cast<const float*>(address), numel); });
  }
  nb::bytes memory(std::int32_t index) {
    std::int64_t size = 0;
    blocking([&] { return sirtaki_stream_memory(stream_, index, nullptr, 0, &size); });
    std::string out(static_cast<std::size_t>(size), '\0');
    blocking([&] { return sirtaki_stream_memory(stream_, index, out.data(), size, &size); });
    return nb::bytes(out.data(), out.size());
  }
  void set_memory(std::int32_t index, const nb::bytes& bytes) {
    const auto size = static_cast<std::int64_t>(bytes.size());
    const void* const data = bytes.c_str();
    blocking([&] { return sirtaki_stream_set_memory(stream_, index, data, size); });
  }
  void report_loss(double loss) { check(sirtaki_stream_report_loss(stream_, loss)); }
  sirtaki_stream id() const { return stream_; }
  std::string tensors_json() { return json_or_raise(sirtaki_stream_tensors_json(stream_)); }

 private:
  std::vector<PyTensor> described_;  // memory of dims and strides of tensors_
  std::vector<sirtaki_tensor> tensors_;
  sirtaki_stream stream_ = 0;
};

// (ranks, bytes per second, latency, forward, backward), times in nanoseconds
using PyConditions = std::tuple<int, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
// (codec of gradients, interval, codec of differences); without interval, gradients are averaged
using PyMethod = std::tuple<std::string, std::optional<std::string>, std::optional<std::string>>;

std::string forecast_json(const PyConditions& at, const std::vector<std::string>& names,
                          const std::vector<PyTensor>& tensors,
                          const std::optional<std::vector<std::int64_t>>& ready_ns,
                          const std::vector<PyMethod>& methods) {
  if (ready_ns && ready_ns->size() != tensors.size()) {
    throw nb::value_error("ready_ns and tensors have different lengths");
  }
  std::vector<const char*> texts;
  std::vector<sirtaki_tensor> described;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    texts.push_back(names.at(i).c_str());
    described.push_back(to_tensor(tensors[i]));
  }
  sirtaki_stream_args stream{};
  stream.struct_size = sizeof(stream);
  stream.name = "forecast";
  stream.count = static_cast<std::int32_t>(tensors.size());
  stream.names = texts.data();
  stream.tensors = described.data();
  stream.reduce_op = SIRTAKI_AVERAGE;
  stream.prescale = stream.postscale = 1.0;
  sirtaki_local_args local{};
  local.struct_size = sizeof(local);
  local.name = stream.name;
  local.outer = SIRTAKI_OUTER_PRESET;
  std::vector<sirtaki_stream_args> streams(methods.size(), stream);
  std::vector<sirtaki_local_args> locals(methods.size(), local);
  std::vector<sirtaki_forecast_args> args(methods.size());
  for (std::size_t i = 0; i < methods.size(); ++i) {
    const auto& [codec, interval, differences] = methods[i];
    streams[i].codec = codec.c_str();
    locals[i].interval = interval ? interval->c_str() : nullptr;
    locals[i].codec = differences ? differences->c_str() : nullptr;
    sirtaki_forecast_args& row = args[i];
    row.struct_size = sizeof(row);
    std::tie(row.ranks, row.bytes_per_second, row.latency_ns, row.forward_ns, row.backward_ns) = at;
    row.ready_ns = ready_ns ? ready_ns->data() : nullptr;
    row.stream = &streams[i];
    row.local = interval ? &locals[i] : nullptr;
  }
  return json_or_raise(sirtaki_forecast_json(args.data(), static_cast<int>(args.size())), SIRTAKI_INVALID_ARGUMENT);
}

void define_life(nb::module_& m) {
  m.def("configure", configure, nb::arg("error_factory"), nb::arg("main_thread_id"));
  m.def("version", [] { return std::string(sirtaki_version()); });
  m.def("nccl_version", sirtaki_nccl_version);
  m.def("init", init, nb::arg("options").none(), nb::arg("rank"), nb::arg("size"), nb::arg("rendezvous").none(),
        nb::arg("secret").none());
  m.def("host", host, nb::arg("size"), nb::arg("bind_address"));
  m.def("key_pair", key_pair);
  m.def("shared_key", shared_key, nb::arg("own"), nb::arg("shown"));
  m.def("shutdown", [] { blocking([] { return sirtaki_shutdown(); }); });
  m.def("regroup", [] { blocking([] { return sirtaki_regroup(); }); });
  m.def(
      "regroup_at", [](std::uint32_t change) { blocking([&] { return sirtaki_regroup_at(change); }); },
      nb::arg("change"));
  m.def(
      "admit", [](bool admits) { blocking([&] { return sirtaki_admit(admits ? 1 : 0); }); }, nb::arg("admits"));
  m.def("leave_soon", [] { check(sirtaki_leave_soon()); });
  m.def("growth", [] {
    int grows = 0;
    int fresh = 0;
    std::uint32_t change = 0;
    blocking([&] { return sirtaki_change_wanted(&grows, &fresh, &change); });
    return std::tuple(grows != 0, fresh != 0, change);
  });
  m.def("changes_announced", [] {
    std::uint32_t processes = 0;
    blocking([&] { return sirtaki_changes_announced(&processes); });
    return processes;
  });
  m.def("is_initialized", [] { return sirtaki_is_initialized() != 0; });
  m.def("rank", sirtaki_rank);
  m.def("size", sirtaki_size);
  m.def("local_rank", sirtaki_local_rank);
  m.def("local_size", sirtaki_local_size);
  m.def("cross_rank", sirtaki_cross_rank);
  m.def("cross_size", sirtaki_cross_size);
  m.def("is_homogeneous", sirtaki_is_homogeneous);
  m.def("options_json", [] { return json_or_raise(sirtaki_options_json()); });
  m.def("stats_json", [] { return json_or_raise(sirtaki_stats_json()); });
  m.def("members_json", [] { return json_or_raise(sirtaki_members_json()); });
  m.def("forecast_json", forecast_json, nb::arg("at"), nb::arg("names"), nb::arg("tensors"), nb::arg("ready_ns").none(),
        nb::arg("methods"));
  m.def("check_interval", [](const std::string& interval) { check(sirtaki_check_interval(interval.c_str())); });
  m.def("check_codec", [](const std::string& codec) { check(sirtaki_check_codec(codec.c_str())); });
  m.def("timeline_start", [](const std::string& path) { check(sirtaki_timeline_start(path.c_str())); });
  m.def("timeline_stop", [] { check(sirtaki_timeline_stop()); });
  m.def("timeline_mark", [](const std::string& name, std::int64_t begin_ns, std::int64_t end_ns) {
    sirtaki_timeline_mark(name.c_str(), begin_ns, end_ns);
  });
}

void define_operations(nb::module_& m) {
  m.def("submit", submit, nb::arg("requests"));
  m.def("poll", poll);
  m.def("wait", [](sirtaki_request request, std::int64_t timeout_ms) {
    blocking([&] { return sirtaki_wait(request, timeout_ms); });
  });
  m.def("set_gives_way", [](bool on) { check(sirtaki_set_gives_way(on ? 1 : 0)); });
  m.def("result", result, nb::arg("request"), nb::arg("item_size"), nb::arg("size"));
  m.def("release", [](sirtaki_request request) {
    const nb::gil_scoped_release nogil;
    sirtaki_release(request);
  });
  m.def("watch", [](sirtaki_request request) { check(sirtaki_watch(request)); });
  m.def("join", [] {
    std::int32_t last = -1;
    blocking([&] { return sirtaki_join(&last, -1); });
    return last;
  });
  m.def("wait_completions", wait_completions, nb::arg("capacity"), nb::arg("timeout_ms"));
  nb::class_<Stream>(m, "Stream")
      .def(nb::init<const std::string&, const std::vector<std::string>&, std::vector<PyTensor>,
                    const std::optional<std::vector<std::int32_t>>&,
                    const std::tuple<int, double, double, std::optional<std::string>, std::int64_t>&,
                    const std::optional<std::vector<std::int32_t>>&>(),
           nb::arg("name"), nb::arg("names"), nb::arg("tensors"), nb::arg("order").none(), nb::arg("how"),
           nb::arg("ranks") = nb::none())
      .def_prop_ro("id", &Stream::id)
      .def("ready", &Stream::ready, nb::arg("index"), nb::arg("address"), nb::arg("absent") = false,
           nb::arg("cuda_stream") = 0)
      .def("finish", &Stream::finish)
      .def("wait", &Stream::wait, nb::arg("timeout_ms") = -1)
      .def("committed", &Stream::committed)
      .def("wait_tensors", &Stream::wait_tensors, nb::arg("indices"), nb::arg("timeout_ms") = -1)
      .def("used", &Stream::used)
      .def("abort", &Stream::abort)
      .def("close", &Stream::close)
      .def("residual", &Stream::residual, nb::arg("index"), nb::arg("address"), nb::arg("numel"))
      .def("set_residual", &Stream::set_residual, nb::arg("index"), nb::arg("address"), nb::arg("numel"))
      .def("memory", &Stream::memory, nb::arg("index"))
      .def("set_memory", &Stream::set_memory, nb::arg("index"), nb::arg("bytes"))
      .def("report_loss", &Stream::report_loss, nb::arg("loss"))
      .def("tensors_json", &Stream::tensors_json);
}

}  // namespace

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): nanobind keeps the definition of the module
NB_MODULE(_core, m) {
  // Hooks of parameters keep streams alive until the interpreter ends, which users should not read as a leak.
  nb::set_leak_warnings(false);
  m.doc() = "The C interface of Sirtaki; use the package sirtaki instead.";
  define_life(m);
  define_operations(m);
  sirtaki_python::define_local(m);
  sirtaki_python::define_sigterm(m);
}
