// Times of the CUDA kernels, of copies and of primitives of CUB on the device at hand, one after the other in rounds.
//
// usage: cuda_timings [rounds [log2 of the elements [normal|student_t]]]. Loads libsirtaki_cuda.so from the folder of
// the program. Prints one JSON object: `device`, `bytes` (bytes that each kernel has to move, by name), `rounds`
// (milliseconds by name). benchmarks/gpu/report.py turns the object into a result file.
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cub/device/device_memcpy.cuh>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_segmented_sort.cuh>
#include <cub/device/device_select.cuh>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda_kernels.h"

namespace sirtaki::kernels::cuda {
namespace {

constexpr int kElementsLog2 = 26;
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

// Returns device memory, which is kept until the program ends.
std::byte* room(std::int64_t bytes) {
  void* data = nullptr;
  must(cudaMalloc(&data, static_cast<std::size_t>(bytes)));
  must(cudaMemset(data, 0, static_cast<std::size_t>(bytes)));
  return static_cast<std::byte*>(data);
}

// Size and distribution of the gradients. Numbers of the t distribution reach the thresholds below as often as normal
// ones, but have outliers.
struct Numbers {
  std::int64_t elements = std::int64_t{1} << kElementsLog2;
  bool student_t = false;  // 3 degrees of freedom; else normal
};

std::byte* numbers_of(std::uint64_t seed, const Numbers& how) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0F, 0.01F);
  std::student_t_distribution<float> student_t(3.0F);
  std::vector<float> numbers(static_cast<std::size_t>(how.elements));
  for (float& number : numbers) {
    number = how.student_t ? 0.0044F * student_t(random) : normal(random);
  }
  std::byte* const data = room(how.elements * 4);
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

// Baseline from other libraries for packing a fusion buffer: a launch takes many arrays, and a fixed number of blocks
// casts and scales each of them.
constexpr int kBatch = 160;  // the limit for arrays in the parameters of a kernel
constexpr int kBlocksOfArray = 8;
constexpr int kThreads = 1024;

struct Batch {
  const float* from[kBatch];
  __half* to[kBatch];
  std::int64_t counts[kBatch];  // multiples of 4
};

__global__ void cast_batch(Batch batch, float scale) {
  const int array = static_cast<int>(blockIdx.x) / kBlocksOfArray;
  const int part = static_cast<int>(blockIdx.x) % kBlocksOfArray;
  const auto* const from = reinterpret_cast<const float4*>(batch.from[array]);
  auto* const to = reinterpret_cast<__half2*>(batch.to[array]);
  for (std::int64_t i = part * kThreads + static_cast<int>(threadIdx.x); i < batch.counts[array] / 4;
       i += kBlocksOfArray * kThreads) {
    const float4 four = from[i];
    to[2 * i] = __floats2half2_rn(four.x * scale, four.y * scale);
    to[2 * i + 1] = __floats2half2_rn(four.z * scale, four.w * scale);
  }
}

// Returns a copy of a list on the device.
template <class T>
T* there(const std::vector<T>& here) {
  std::byte* const data = room(static_cast<std::int64_t>(here.size() * sizeof(T)));
  must(cudaMemcpy(data, here.data(), here.size() * sizeof(T), cudaMemcpyHostToDevice));
  return reinterpret_cast<T*>(data);
}

class Bench {
 public:
  explicit Bench(const Numbers& how)
      : elements_(how.elements),
        kernels_(load()),
        gradient_(numbers_of(1, how)),
        residual_(numbers_of(2, how)),
        left_(room(how.elements * 4)) {
    for (std::int64_t r = 0; r < kRanks; ++r) {
      payloads_.push_back(room(elements_ * 4));
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
    add_segmented_sorts();
  }

  const std::vector<Subject>& subjects() const { return subjects_; }

 private:
  void add(const std::string& name, std::int64_t bytes, std::function<void()> run) {
    subjects_.push_back({name, bytes, std::move(run)});
  }

  void add_copy() {
    add("copy", 8 * elements_, [this] {
      must(cudaMemcpyAsync(left_, gradient_, static_cast<std::size_t>(elements_) * 4, cudaMemcpyDeviceToDevice));
    });
  }

  static std::string words(const GroupTopk& how) {
    return "/" + std::to_string(how.group) + "/" + std::to_string(how.keep);
  }
  std::int64_t payload_bytes(const GroupTopk& how) const {
    return elements_ / how.group * how.keep * (4 + (how.group <= 256 ? 1 : 2));
  }
  void add_group_topk(const GroupTopk& how) {
    add("group_topk_encode" + words(how), 12 * elements_ + payload_bytes(how), [this, how] {
      must(kernels_.group_topk_encode({how, elements_, arrays_, payloads_[0], flag_}, nullptr));
    });
  }
  void add_group_topk_sum(const GroupTopk& how) {
    for (std::byte* payload : payloads_) {
      must(kernels_.group_topk_encode({how, elements_, {gradient_}, payload, flag_}, nullptr));
    }
    sums_.push_back(copies_of(payload_bytes(how)));
    add("group_topk_sum" + words(how) + "/8", kRanks * payload_bytes(how) + 4 * elements_,
        [this, how, sources = sums_.back()] {
          must(kernels_.group_topk_sum({how, elements_, sources, left_}, nullptr));
        });
  }

  // Copies the current content of the payloads, as input of a kernel that sums them.
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
    const TwobitBlocks blocks{elements_, 2048};
    const std::int64_t count = elements_ / blocks.block;
    std::byte* const exponents = room(count);
    must(cudaMemset(exponents, -6, static_cast<std::size_t>(count)));
    auto* const magnitudes =
        reinterpret_cast<TwobitMagnitude*>(room((count + 1) * static_cast<std::int64_t>(sizeof(TwobitMagnitude))));
    add("twobit_measure", 8 * elements_, [=, this] {
      must(kernels_.twobit_measure({blocks, arrays_, magnitudes}, nullptr));
    });
    std::byte* const chosen = room(count);
    add("twobit_choose", count * static_cast<std::int64_t>(2 * sizeof(TwobitMagnitude) + 1), [=, this] {
      must(kernels_.twobit_choose({blocks, magnitudes, 1.0, true, chosen}, nullptr));
    });
    const std::int64_t bytes = elements_ / 4 + count;
    add("twobit_encode", 12 * elements_ + bytes, [=, this] {
      must(kernels_.twobit_encode({blocks, arrays_, exponents, payloads_[0], flag_}, nullptr));
    });
    for (std::byte* payload : payloads_) {
      must(kernels_.twobit_encode({blocks, {gradient_}, exponents, payload, flag_}, nullptr));
    }
    add("twobit_sum/8", kRanks * bytes + 4 * elements_, [=, this, parts = copies_of(bytes)] {
      must(kernels_.twobit_sum({blocks, parts, left_}, nullptr));
    });
  }

  void add_scaled(ScaledCode code) {
    const ScaledCast how{code, 256};
    const std::int64_t bytes = elements_ + elements_ / 256;
    const std::string kind = "/" + std::to_string(static_cast<int>(code));
    add("scaled_encode" + kind, 12 * elements_ + bytes, [=, this] {
      must(kernels_.scaled_encode({how, elements_, arrays_, payloads_[0], flag_}, nullptr));
    });
    for (std::byte* payload : payloads_) {
      must(kernels_.scaled_encode({how, elements_, {gradient_}, payload, flag_}, nullptr));
    }
    add("scaled_sum" + kind + "/8", kRanks * bytes + 4 * elements_, [=, this, sources = copies_of(bytes)] {
      must(kernels_.scaled_sum({how, elements_, sources, left_}, nullptr));
    });
  }

  void add_elements() {
    for (const DType half : {DType::kF16, DType::kBF16}) {
      const std::string kind = half == DType::kF16 ? "f16" : "bf16";
      add("cast_to_" + kind, 6 * elements_, [=, this] {
        must(kernels_.cast({DType::kF32, gradient_, half, left_, elements_}, nullptr));
      });
      add("cast_from_" + kind, 6 * elements_, [=, this] {
        must(kernels_.cast({half, gradient_, DType::kF32, left_, elements_}, nullptr));
      });
    }
    add_list(160, elements_ / 160 / kAligned * kAligned);
    add_list(1000, std::min<std::int64_t>(16384, elements_ / 1000 / kAligned * kAligned));
    add("all_finite", 4 * elements_, [this] {
      must(kernels_.all_finite({DType::kF32, gradient_, elements_, flag_}, nullptr));
    });
    std::byte* const momentum = room(elements_ * 4);
    add("momentum_correct", 16 * elements_, [=, this] {
      must(kernels_.momentum_correct({{0.9F, true}, elements_, gradient_, momentum, left_}, nullptr));
    });
    // The kernel reads and writes each of three arrays.
    add("outer_update", 24 * elements_, [=, this, anchor = copy_of(gradient_), mean = copy_of(residual_)] {
      must(kernels_.outer_update({OuterStep{0.7F, 0.9F, true}, elements_, anchor, momentum, mean}, nullptr));
    });
  }

  // Returns a copy for a kernel that overwrites its input.
  std::byte* copy_of(const std::byte* numbers) const {
    std::byte* const copy = room(elements_ * 4);
    must(cudaMemcpy(copy, numbers, static_cast<std::size_t>(elements_) * 4, cudaMemcpyDeviceToDevice));
    return copy;
  }

  // Adds the cast of many arrays one by one, as small tensors are packed into a fusion buffer.
  void add_list(std::int64_t count, std::int64_t size) {
    add("cast_list/" + std::to_string(count), 6 * count * size, [=, this] {
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t begin = i * size;
        must(kernels_.cast({DType::kF32, gradient_ + 4 * begin, DType::kF16, left_ + 2 * begin, size}, nullptr));
      }
    });
    add_batches(count, size);
  }

  // Adds baselines with the same lists in few launches: casts by a fixed number of blocks, and plain copies by CUB.
  void add_batches(std::int64_t count, std::int64_t size) {
    const auto* const from = reinterpret_cast<const float*>(gradient_);
    auto* const halves = reinterpret_cast<__half*>(left_);
    add("batched_cast/" + std::to_string(count), 6 * count * size, [=] {
      for (std::int64_t first = 0; first < count; first += kBatch) {
        Batch batch{};
        const int arrays = static_cast<int>(std::min<std::int64_t>(kBatch, count - first));
        for (int i = 0; i < arrays; ++i) {
          batch.from[i] = from + (first + i) * size;
          batch.to[i] = halves + (first + i) * size;
          batch.counts[i] = size;
        }
        cast_batch<<<arrays * kBlocksOfArray, kThreads>>>(batch, 0.5F);
        must(cudaGetLastError());
      }
    });
    std::vector<const std::byte*> sources;
    std::vector<std::byte*> targets;
    for (std::int64_t i = 0; i < count; ++i) {
      sources.push_back(gradient_ + 4 * i * size);
      targets.push_back(left_ + 4 * i * size);
    }
    auto* const inputs = reinterpret_cast<const void**>(there(sources));
    auto* const outputs = reinterpret_cast<void**>(there(targets));
    auto* const bytes = there(std::vector<std::int64_t>(static_cast<std::size_t>(count), 4 * size));
    const auto arrays = static_cast<std::uint32_t>(count);
    std::size_t scratch_bytes = 0;
    must(cub::DeviceMemcpy::Batched(nullptr, scratch_bytes, inputs, outputs, bytes, arrays));
    std::byte* const scratch = room(static_cast<std::int64_t>(scratch_bytes));
    add("cub_batched_copy/" + std::to_string(count), 8 * count * size,
        [=]() mutable { must(cub::DeviceMemcpy::Batched(scratch, scratch_bytes, inputs, outputs, bytes, arrays)); });
  }

  // Adds the threshold selection: the threshold selects about 1 % of the elements, the capacity has room for them.
  void add_threshold() {
    const ThresholdSelect how{0.0365F, elements_ / 50};
    const std::size_t bytes = 4 + static_cast<std::size_t>(elements_ / kSparseTile * 2 + how.capacity * 6);
    auto* const found = reinterpret_cast<ThresholdFound*>(room(sizeof(ThresholdFound)));
    std::byte* const scratch = room(static_cast<std::int64_t>(threshold_scratch_bytes(elements_)));
    add("threshold_select", 12 * elements_ + elements_ / 100 * 6, [=, this] {
      must(kernels_.threshold_select({how, 0, elements_, arrays_, payloads_[0], bytes, found, scratch}, nullptr));
    });
    add("threshold_select_exact", 12 * elements_ + elements_ / 100 * 6, [=, this] {
      must(kernels_.threshold_select({how, elements_ / 100, elements_, arrays_, payloads_[0], bytes, found, scratch},
                                     nullptr));
    });
    const ThresholdSelect alone{0.0258F, elements_ / 50};
    for (std::byte* payload : payloads_) {
      must(kernels_.threshold_select({alone, 0, elements_, {gradient_}, payload, bytes, found, scratch}, nullptr));
    }
    std::uint32_t entries = 0;
    must(cudaMemcpy(&entries, payloads_.back(), sizeof(entries), cudaMemcpyDeviceToHost));
    const std::int64_t used = 4 + elements_ / kSparseTile * 2 + std::int64_t{entries} * 6;
    auto* const firsts = reinterpret_cast<std::uint32_t*>(
        room(static_cast<std::int64_t>(sparse_scratch_bytes(elements_, static_cast<std::size_t>(kRanks)))));
    add("sparse_sum/8", kRanks * used + 4 * elements_, [=, this, sources = copies_of(used)] {
      must(kernels_.sparse_sum({DType::kF32, elements_, sources, left_, firsts}, nullptr));
    });
  }

  void add_filter(std::int64_t size) {
    const FilterShape shape{65536, size};
    const std::int64_t elements = shape.filters * size;
    if (elements > elements_) {
      return;
    }
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

  // Adds whole-array primitives without error feedback: building blocks of a selection.
  void add_baselines() {
    const auto* const from = reinterpret_cast<const float*>(gradient_);
    auto* const to = reinterpret_cast<float*>(left_);
    auto* const found = reinterpret_cast<std::int64_t*>(room(8));
    const ReachesThreshold reaches{0.0258F};
    std::size_t select_bytes = 0;
    must(cub::DeviceSelect::If(nullptr, select_bytes, from, to, found, elements_, reaches));
    std::byte* const select_room = room(static_cast<std::int64_t>(select_bytes));
    add("cub_select_if", 4 * elements_, [=, this]() mutable {
      must(cub::DeviceSelect::If(select_room, select_bytes, from, to, found, elements_, reaches));
    });
    std::size_t sort_bytes = 0;
    must(cub::DeviceRadixSort::SortKeysDescending(nullptr, sort_bytes, from, to, elements_));
    std::byte* const sort_room = room(static_cast<std::int64_t>(sort_bytes));
    add("cub_radix_sort", 8 * elements_, [=, this]() mutable {
      must(cub::DeviceRadixSort::SortKeysDescending(sort_room, sort_bytes, from, to, elements_));
    });
  }

  // Adds sorts of every group by itself, which put the largest elements first.
  void add_segmented_sorts() {
    const auto* const from = reinterpret_cast<const float*>(gradient_);
    auto* const to = reinterpret_cast<float*>(left_);
    for (const std::int64_t group : {256, 512, 1024, 4096}) {
      const std::int64_t groups = elements_ / group;
      std::vector<std::int64_t> begins;
      for (std::int64_t i = 0; i <= groups; ++i) {
        begins.push_back(i * group);
      }
      const std::int64_t* const begin = there(begins);
      std::size_t bytes = 0;
      must(cub::DeviceSegmentedSort::SortKeysDescending(nullptr, bytes, from, to, elements_, groups, begin, begin + 1));
      std::byte* const scratch = room(static_cast<std::int64_t>(bytes));
      add("cub_segmented_sort/" + std::to_string(group), 8 * elements_, [=, this]() mutable {
        must(cub::DeviceSegmentedSort::SortKeysDescending(scratch, bytes, from, to, elements_, groups, begin,
                                                          begin + 1));
      });
    }
  }

  const std::int64_t elements_;
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

// Returns the milliseconds of one run: the mean of a few runs in sequence.
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

void print_all(int rounds, const Numbers& how) {
  const Bench bench(how);
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
  sirtaki::kernels::cuda::Numbers how;
  if (argc > 2) {
    how.elements = std::int64_t{1} << std::atoi(argv[2]);
  }
  how.student_t = argc > 3 && std::strcmp(argv[3], "student_t") == 0;
  sirtaki::kernels::cuda::print_all(argc > 1 ? std::atoi(argv[1]) : 30, how);
  return 0;
}
