// GuardedMemory: the memory of a fake GPU. An access by the host is a fault of the process, as the work of the device
// alone opens the memory.
//
// All bytes of a block are 0xFF, which is NaN in every floating-point type, when it is new and again when it has been
// given back, and blocks are not reused: work that reads memory too early or too late yields NaN. AddressSanitizer
// reports accesses beyond a block. Owner: FakeDevice. Not thread-safe.
#pragma once

#include <cstddef>

#include "tests/world/seeds.h"

namespace sirtaki::device::testing {

class GuardedMemory {
 public:
  // False under a sanitizer, where opening and closing takes half the time of the tests of streams: the plain build
  // runs the same tests.
  static constexpr bool kGuards = !world::kSanitized;

  GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  ~GuardedMemory();

  // Returns a block whose address is a multiple of 256.
  std::byte* take(std::size_t bytes);
  void give_back(std::byte* data, std::size_t bytes);

  // Opens all blocks as long as one of its kind exists.
  class Open {
   public:
    explicit Open(GuardedMemory& memory) : memory_(memory) {
      ++memory_.open_;
      memory_.protect(false);  // also a block that is new since the last
    }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;
    ~Open() {
      if (--memory_.open_ == 0) {
        memory_.protect(true);
      }
    }

   private:
    GuardedMemory& memory_;
  };

 private:
  void protect(bool closed) const;

  std::byte* begin_ = nullptr;
  std::size_t used_ = 0;
  int open_ = 0;
};

}  // namespace sirtaki::device::testing
