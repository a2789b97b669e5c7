#include "tests/unit/device/guarded_memory.h"

#include <sys/mman.h>

#include <cstring>
#include <stdexcept>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(data, bytes) (static_cast<void>(data), static_cast<void>(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(data, bytes) (static_cast<void>(data), static_cast<void>(bytes))
#endif

namespace sirtaki::device::testing {
namespace {

// Addresses, which take no memory until they are used.
constexpr std::size_t kReserved = std::size_t{1} << 30;
constexpr std::size_t kAlign = 256;
constexpr int kUnwritten = 0xFF;

}  // namespace

GuardedMemory::GuardedMemory() {
  constexpr int kClosed = kGuards ? PROT_NONE : PROT_READ | PROT_WRITE;
  void* const data = mmap(nullptr, kReserved, kClosed, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    throw std::runtime_error("no addresses for the memory of a fake device");
  }
  begin_ = static_cast<std::byte*>(data);
  ASAN_POISON_MEMORY_REGION(begin_, kReserved);
}

GuardedMemory::~GuardedMemory() {
  ASAN_UNPOISON_MEMORY_REGION(begin_, kReserved);
  munmap(begin_, kReserved);
}

std::byte* GuardedMemory::take(std::size_t bytes) {
  std::byte* const data = begin_ + used_;
  // A gap separates it from the next block.
  const std::size_t taken = (bytes / kAlign + 2) * kAlign;
  if (taken > kReserved - used_) {
    throw std::runtime_error("the tests allocate more memory than a fake device has addresses");
  }
  used_ += taken;
  ASAN_UNPOISON_MEMORY_REGION(data, bytes);
  give_back(data, bytes);
  return data;
}

void GuardedMemory::give_back(std::byte* data, std::size_t bytes) {
  const Open open(*this);
  std::memset(data, kUnwritten, bytes);
}

void GuardedMemory::protect(bool closed) const {
  if (kGuards && used_ > 0 && mprotect(begin_, used_, closed ? PROT_NONE : PROT_READ | PROT_WRITE) != 0) {
    throw std::runtime_error("the memory of a fake device cannot be protected");
  }
}

}  // namespace sirtaki::device::testing
