// Times of the CUDA kernels, of copies and of CUB's primitives on the device at hand, one after the other in rounds.
//
// usage: cuda_timings [rounds]. Loads libsirtaki_cuda.so from the folder it is in. Prints one JSON object: `device`,
// `bytes` (what each kernel has to move, by name), `rounds` (milliseconds by name). benchmarks/gpu/report.py makes a
// result file of it.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda_kernels.h"

namespace sirtaki::kernels::cuda {
namespace {

constexpr std::int64_t kElements = std::int64_t{1} << 26;
constexpr std::int64_t kRanks = 8;
constexpr int kRepeats = 3;
constexpr std::int64_t kAligned = 64;  // elements to whose multiples arrays of a list are rounded down

void must(cudaError_t error) {
  if (error != cudaSuccess) {
    std::fprintf(stderr, "cuda_timings: %s\n", cudaGetErrorString(error));
    std::exit(1);
  }
}
void must(Launch launch) {
  must(static_cast<cudaError_t>(launch.code));
}

const Kernels& load() {
  void* const plugin = dlopen("libsirtaki_cuda.so", RTLD_NOW | RTLD_LOCAL);
  void* const symbol = plugin == nullptr ? nullptr : dlsym(plugin, kKernelsSymbol);
  if (symbol == nullptr) {
    std::fprintf(stderr, "cuda_timings: %s\n", dlerror());
    std::exit(1);
  }
  return *reinterpret_cast<KernelsFunction*>(symbol)();
}

// Device memory, kept until the program ends.
std::byte* room(std::int64_t bytes) {
  void* data = nullptr;
  must(cudaMalloc(&data, static_cast<std::size_t>(bytes)));
  must(cudaMemset(data, 0, static_cast<std::size_t>(bytes)));
  return static_cast<std::byte*>(data);
}

std::byte* normal_numbers(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0F, 0.01F);
  std::vector<float> numbers(static_cast<std::size_t>(kElements));
  for (float& number : numbers) {
    number = normal(random);
  }
  std::byte* const data = room(kElements * 4);
  must(cudaMemcpy(data, numbers.data(), numbers.size() * sizeof(float), cudaMemcpyHostToDevice));
  return data;
}

struct Subject {
  std::string name;
  std::int64_t bytes;  // read and written, each once
  std::function<void()> run;
};

struct ReachesThreshold {
  float threshold;
  __device__ bool operator()(float value) const { return fabsf(value) >= threshold; }
};

class Bench {
 public:
  Bench() : kernels_(load()), gradient_(normal_numbers(1)), residual_(normal_numbers(2)), left_(room(kElements * 4)) {
    for (std::int64_t r = 0; r < kRanks; ++r) {
      payloads_.push_back(room(kElements * 4));
    }
    flag_ = reinterpret_cast<std::uint32_t*>(room(4));
    arrays_ = {gradient_, residual_, left_};
    add_copy();
    for (const GroupTopk& how : {GroupTopk{256, 4}, GroupTopk{512, 5}, GroupTopk{1024, 10}, GroupTopk{1024, 64},
                                 GroupTopk{4096, 41}, GroupTopk{4096, 256}}) {
      add_group_topk(how);
    }
    add_group_topk_sum({512, 5});
    add_twobit();
    add_scaled(ScaledCode::kInt8);
    add_scaled(ScaledCode::kE4M3);
    add_elements();
    add_threshold();
    add_filter(576);
    add_baselines();
  }

  const std::vector<Subject>& subjects() const { return subjects_; }

 private:
  void add(const std::string& name, std::int64_t bytes, std::function<void()> run) {
    subjects_.push_back({name, bytes, std::move(run)});
  }

  void add_copy() {
    add("copy", 8 * kElements, [this] {
      must(cudaMemcpyAsync(left_, gradient_, static_cast<std::size_t>(kElements) * 4, cudaMemcpyDeviceToDevice));
    });
  }

  static std::string words(const GroupTopk& how) {
    return "/" + std::to_string(how.group) + "/" + std::to_string(how.keep);
  }
  static std::int64_t payload_bytes(const GroupTopk& how) {
    return kElements / how.group * how.keep * (4 + (how.group <= 256 ? 1 : 2));
  }
  void add_group_topk(const GroupTopk& how) {
    add("group_topk_encode" + words(how), 12 * kElements + payload_bytes(how), [this, how] {
      must(kernels_.group_topk_encode({how, kElements, arrays_, payloads_[0], flag_}, nullptr));
    });
  }
  void add_group_topk_sum(const GroupTopk& how) {
    for (std::byte* payload : payloads_) {
      must(kernels_.group_topk_encode({how, kElements, {gradient_}, payload, flag_}, nullptr));
    }
    sums_.push_back(copies_of(payload_bytes(how)));
    add("group_topk_sum" + words(how) + "/8", kRanks * payload_bytes(how) + 4 * kElements,
        [this, how, sources = sums_.back()] {
          must(kernels_.group_topk_sum({how, kElements, sources, left_}, nullptr));
        });
  }

  // What the payloads hold now, for a kernel that adds them up.
  std::vector<const std::byte*> copies_of(std::int64_t bytes) {
    std::vector<const std::byte*> copies;
    for (const std::byte* payload : payloads_) {
      std::byte* const copy = room(bytes);
      must(cudaMemcpy(copy, payload, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice));
      copies.push_back(copy);
    }
    return copies;
  }

  void add_twobit() {
    const TwobitStripes stripes{kElements, 16384, 16384 / 4};
    const std::int64_t count = kElements / stripes.stripe;
    const std::vector<std::int32_t> host(static_cast<std::size_t>(count), -6);
    std::byte* const exponents = room(count * 4);
    must(cudaMemcpy(exponents, host.data(), host.size() * 4, cudaMemcpyHostToDevice));
    const auto* const there = reinterpret_cast<const std::int32_t*>(exponents);
    auto* const stats = reinterpret_cast<TwobitStats*>(room(count * static_cast<std::int64_t>(sizeof(TwobitStats))));
    auto* const records = reinterpret_cast<TwobitRecord*>(
        room(kElements / kTwobitRecord * static_cast<std::int64_t>(sizeof(TwobitRecord))));
    add("twobit_encode", 12 * kElements + kElements / 4, [=, this] {
      must(kernels_.twobit_encode({stripes, arrays_, there, payloads_[0], stats, records}, nullptr));
    });
    std::vector<TwobitSource> parts;
    for (std::byte* payload : payloads_) {
      must(kernels_.twobit_encode({stripes, {gradient_}, there, payload, stats, records}, nullptr));
    }
    for (const std::byte* copy : copies_of(kElements / 4)) {
      parts.push_back({copy, there});
    }
    add("twobit_sum/8", kRanks * kElements / 4 + 4 * kElements, [=, this] {
      must(kernels_.twobit_sum({stripes, parts, left_}, nullptr));
    });
  }

  void add_scaled(ScaledCode code) {
    const ScaledCast how{code, 256};
    const std::int64_t bytes = kElements + kElements / 256;
    const std::string kind = "/" + std::to_string(static_cast<int>(code));
    add("scaled_encode" + kind, 12 * kElements + bytes, [=, this] {
      must(kernels_.scaled_encode({how, kElements, arrays_, payloads_[0], flag_}, nullptr));
    });
    for (std::byte* payload : payloads_) {
      must(kernels_.scaled_encode({how, kElements, {gradient_}, payload, flag_}, nullptr));
    }
    add("scaled_sum" + kind + "/8", kRanks * bytes + 4 * kElements, [=, this, sources = copies_of(bytes)] {
      must(kernels_.scaled_sum({how, kElements, sources, left_}, nullptr));
    });
  }

  void add_elements() {
    for (const DType half : {DType::kF16, DType::kBF16}) {
      const std::string kind = half == DType::kF16 ? "f16" : "bf16";
      add("cast_to_" + kind, 6 * kElements, [=, this] {
        must(kernels_.cast({DType::kF32, gradient_, half, left_, kElements}, nullptr));
      });
      add("cast_from_" + kind, 6 * kElements, [=, this] {
        must(kernels_.cast({half, gradient_, DType::kF32, left_, kElements}, nullptr));
      });
    }
    add_list(160, kElements / 160 / kAligned * kAligned);
    add_list(1000, 16384);
    add("all_finite", 4 * kElements, [this] {
      must(kernels_.all_finite({DType::kF32, gradient_, kElements, flag_}, nullptr));
    });
    std::byte* const momentum = room(kElements * 4);
    add("momentum_correct", 16 * kElements, [=, this] {
      must(kernels_.momentum_correct({{0.9F, true}, kElements, gradient_, momentum, left_}, nullptr));
    });
  }

  // Arrays one by one, as small tensors go into a buffer.
  void add_list(std::int64_t count, std::int64_t size) {
    add("cast_list/" + std::to_string(count), 6 * count * size, [=, this] {
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t begin = i * size;
        must(kernels_.cast({DType::kF32, gradient_ + 4 * begin, DType::kF16, left_ + 2 * begin, size}, nullptr));
      }
    });
  }

  // About 1 % of the elements; a capacity that they fit into.
  void add_threshold() {
    const ThresholdSelect how{0.0365F, kElements / 50};
    auto* const selected = reinterpret_cast<Selected*>(room(sizeof(Selected)));
    std::byte* const scratch = room(static_cast<std::int64_t>(kernels_.threshold_scratch_bytes(kElements)));
    add("threshold_select", 12 * kElements + kElements / 100 * 6, [=, this] {
      must(kernels_.threshold_select({how, kElements, arrays_, payloads_[0], selected, scratch}, nullptr));
    });
    const ThresholdSelect alone{0.0258F, kElements / 50};
    std::vector<SparsePayload> sources;
    for (std::byte* payload : payloads_) {
      must(kernels_.threshold_select({alone, kElements, {gradient_}, payload, selected, scratch}, nullptr));
    }
    Selected found;
    must(cudaMemcpy(&found, selected, sizeof(found), cudaMemcpyDeviceToHost));
    const std::int64_t bytes = kElements / kSparseTile * 2 + found.entries * 6;
    for (const std::byte* copy : copies_of(bytes)) {
      sources.push_back({copy, found.entries});
    }
    auto* const firsts = reinterpret_cast<std::uint32_t*>(room(kRanks * (kElements / kSparseTile) * 4));
    add("sparse_sum/8", kRanks * bytes + 4 * kElements, [=, this] {
      must(kernels_.sparse_sum({DType::kF32, kElements, sources, left_, firsts}, nullptr));
    });
  }

  void add_filter(std::int64_t size) {
    const FilterShape shape{65536, size};
    const std::int64_t elements = shape.filters * size;
    std::byte* const norms = room(shape.filters * 4);
    std::byte* const ids = room(shape.filters * 2);
    const std::int64_t keep = shape.filters / 10;
    add("filter_norms/" + std::to_string(size), 12 * elements, [=, this] {
      must(kernels_.filter_norms({shape, arrays_, norms}, nullptr));
    });
    add("filter_select/65536", 4 * shape.filters + 2 * keep, [=, this] {
      must(kernels_.filter_select({shape.filters, keep, norms, ids}, nullptr));
    });
    must(kernels_.filter_norms({shape, arrays_, norms}, nullptr));
    must(kernels_.filter_select({shape.filters, keep, norms, ids}, nullptr));
    add("filter_gather/" + std::to_string(size), 12 * keep * size, [=, this] {
      must(kernels_.filter_gather({shape, {ids, keep}, {}, left_, payloads_[0], flag_}, nullptr));
    });
  }

  // Whole-array primitives without error feedback: what a selection can be made of.
  void add_baselines() {
    const auto* const from = reinterpret_cast<const float*>(gradient_);
    auto* const to = reinterpret_cast<float*>(left_);
    auto* const found = reinterpret_cast<std::int64_t*>(room(8));
    const ReachesThreshold reaches{0.0258F};
    std::size_t select_bytes = 0;
    must(cub::DeviceSelect::If(nullptr, select_bytes, from, to, found, kElements, reaches));
    std::byte* const select_room = room(static_cast<std::int64_t>(select_bytes));
    add("cub_select_if", 4 * kElements,
        [=]() mutable { must(cub::DeviceSelect::If(select_room, select_bytes, from, to, found, kElements, reaches)); });
    std::size_t sort_bytes = 0;
    must(cub::DeviceRadixSort::SortKeysDescending(nullptr, sort_bytes, from, to, kElements));
    std::byte* const sort_room = room(static_cast<std::int64_t>(sort_bytes));
    add("cub_radix_sort", 8 * kElements,
        [=]() mutable { must(cub::DeviceRadixSort::SortKeysDescending(sort_room, sort_bytes, from, to, kElements)); });
  }

  const Kernels& kernels_;
  std::byte* gradient_;
  std::byte* residual_;
  std::byte* left_;
  std::vector<std::byte*> payloads_;
  std::vector<std::vector<const std::byte*>> sums_;
  std::uint32_t* flag_ = nullptr;
  Feedback arrays_{};
  std::vector<Subject> subjects_;
};

// Milliseconds of one run, the mean of a few behind each other.
float time_of(const Subject& subject) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  must(cudaEventCreate(&begin));
  must(cudaEventCreate(&end));
  subject.run();
  must(cudaEventRecord(begin));
  for (int i = 0; i < kRepeats; ++i) {
    subject.run();
  }
  must(cudaEventRecord(end));
  must(cudaEventSynchronize(end));
  float milliseconds = 0;
  must(cudaEventElapsedTime(&milliseconds, begin, end));
  must(cudaEventDestroy(begin));
  must(cudaEventDestroy(end));
  return milliseconds / kRepeats;
}

void print_all(int rounds) {
  const Bench bench;
  cudaDeviceProp device{};
  must(cudaGetDeviceProperties(&device, 0));
  std::printf("{\"device\": \"%s\", \"bytes\": {", device.name);
  const char* comma = "";
  for (const Subject& subject : bench.subjects()) {
    std::printf("%s\"%s\": %lld", comma, subject.name.c_str(), static_cast<long long>(subject.bytes));
    comma = ", ";
  }
  std::printf("}, \"rounds\": [");
  for (int round = 0; round < rounds; ++round) {
    std::printf("%s{", round == 0 ? "" : ", ");
    comma = "";
    for (const Subject& subject : bench.subjects()) {
      std::printf("%s\"%s\": %.6g", comma, subject.name.c_str(), static_cast<double>(time_of(subject)));
      comma = ", ";
    }
    std::printf("}");
  }
  std::printf("]}\n");
}

}  // namespace
}  // namespace sirtaki::kernels::cuda

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "cuda_timings: no CUDA device\n");
    return 2;
  }
  sirtaki::kernels::cuda::print_all(argc > 1 ? std::atoi(argv[1]) : 30);
  return 0;
}
