// Machine of the tests of CUDA kernels: a CUDA device, with the plug-in as it is loaded at run time, or the emulator.
// One of machine_cuda.cc and machine_emulated.cc is linked.
//
// Threads: one. All objects live as long as the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda_kernels.h"
#include "kernels/reduce/reduce.h"
#include "tests/unit/kernels/gradients.h"

namespace sirtaki::device {

// Returns the reason why tests cannot run; empty if they can.
std::string missing();

const kernels::cuda::Kernels& kernels();

// Returns the limit of array sizes: the emulator is slow, and so are tools that check all accesses on a device.
std::size_t most_elements();
// Sets the limit before the tests; on a device only.
void set_most_elements(std::size_t elements);

// Returns the number of orders in which the machine can run threads.
int orders();
void set_order(int order);

void* allocate(std::size_t bytes);
void release(void* data);
void to_device(void* to, const void* from, std::size_t bytes);
// Waits for all earlier work.
void to_host(void* to, const void* from, std::size_t bytes);

// Memory of a device, `shift` bytes after a 256-byte border, with guard bytes around it.
class Memory {
 public:
  explicit Memory(std::size_t bytes, std::size_t shift = 0)
      : bytes_(bytes), shift_(shift), all_(bytes + 2 * kGuard + shift), data_(allocate(all_)) {
    fill(std::vector<std::byte>(bytes, kPoison));
  }
  explicit Memory(const std::vector<std::byte>& bytes, std::size_t shift = 0) : Memory(bytes.size(), shift) {
    fill(bytes);
  }
  explicit Memory(const kernels::Array& array, std::size_t shift = 0) : Memory(array.copy(), shift) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { release(data_); }

  std::byte* data() { return static_cast<std::byte*>(data_) + kGuard + shift_; }
  std::size_t size() const { return bytes_; }

  // Returns the bytes; fails the test if a guard byte was overwritten.
  std::vector<std::byte> copy() const {
    std::vector<std::byte> whole(all_);
    to_host(whole.data(), data_, all_);
    const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(kGuard + shift_);
    const auto end = begin + static_cast<std::ptrdiff_t>(bytes_);
    const auto is_poison = [](std::byte byte) { return byte == kPoison; };
    EXPECT_TRUE(std::all_of(whole.begin(), begin, is_poison)) << "written before the array";
    EXPECT_TRUE(std::all_of(end, whole.end(), is_poison)) << "written behind the array";
    return {begin, end};
  }
  template <class T>
  T value(std::size_t index = 0) const {
    T value;
    const std::vector<std::byte> bytes = copy();
    std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
    return value;
  }

 private:
  static constexpr std::size_t kGuard = 256;
  static constexpr std::byte kPoison{0xA5};

  void fill(const std::vector<std::byte>& bytes) {
    std::vector<std::byte> whole(all_, kPoison);
    std::copy(bytes.begin(), bytes.end(), whole.begin() + static_cast<std::ptrdiff_t>(kGuard + shift_));
    to_device(data_, whole.data(), all_);
  }

  std::size_t bytes_;
  std::size_t shift_;
  std::size_t all_;
  void* data_;
};

// Divides float32 sums as average() does.
inline void divide(std::vector<std::byte>& sums, std::int64_t divisor) {
  const std::byte* const source[] = {sums.data()};
  const auto n = static_cast<std::int64_t>(sums.size() / sizeof(float));
  kernels::ref::average(DType::kF32, source, sums.data(), n, static_cast<double>(divisor));
}

// A gradient on host and device, optionally with a residual, and the residuals that kernel and reference write.
class Gradient {
 public:
  Gradient(std::size_t n, kernels::Shape shape, bool feedback, kernels::Random& random)
      : shift_(4 * (random() % 5)),
        place_(random() % 3),
        gradient_(kernels::gradient_array(n, shape, random)),
        residual_(kernels::gradient_array(n, shape, random)),
        expected_left_(gradient_.size(), 0),
        feedback_(feedback),
        device_gradient_(gradient_, shift_),
        device_residual_(residual_, shift_),
        device_left_(gradient_.size(), shift_) {}

  std::int64_t n() const { return kernels::count(gradient_); }
  kernels::Feedback host() {
    return feedback_ ? kernels::Feedback{gradient_.data(), residual_.data(), expected_left_.data()}
                     : kernels::Feedback{gradient_.data()};
  }
  kernels::Feedback device() {
    return feedback_ ? kernels::Feedback{device_gradient_.data(), device_residual_.data(), left().data()}
                     : kernels::Feedback{device_gradient_.data()};
  }
  void expect_same_left() {
    if (feedback_) {
      EXPECT_EQ(first_difference(expected_left_.copy(), left().copy()), "");
    }
  }

  static std::string first_difference(const std::vector<std::byte>& expected, const std::vector<std::byte>& found) {
    const auto at = std::mismatch(expected.begin(), expected.end(), found.begin(), found.end());
    if (at.first == expected.end() && at.second == found.end()) {
      return "";
    }
    return "byte " + std::to_string(at.first - expected.begin()) + " of " + std::to_string(expected.size()) +
           " differs; " + std::to_string(found.size()) + " were found";
  }

 private:
  // Kernels write the part not sent to memory of its own, over the residual, or over the gradient, as the runtime does.
  Memory& left() { return place_ == 0 ? device_left_ : place_ == 1 ? device_residual_ : device_gradient_; }

  std::size_t shift_;
  std::uint64_t place_;
  kernels::Array gradient_;
  kernels::Array residual_;
  kernels::Array expected_left_;
  bool feedback_;
  Memory device_gradient_;
  Memory device_residual_;
  Memory device_left_;
};

}  // namespace sirtaki::device
