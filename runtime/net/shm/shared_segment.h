// SharedSegment: memory without a name that several processes of one host map.
//
// For: SharedMemory. Owned by it; one thread at a time. The memory is allocated before it is mapped and sealed against
// shrinking, so no access ever ends in SIGBUS. It goes when the last process that maps it does, however that ends;
// processes that these fork do not map it.
// Others open it through the creator's process and descriptor number and know it by a secret token inside.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::net {

class SharedSegment {
 public:
  using Token = std::array<std::byte, 16>;
  // How another process finds it. For authenticated connections only.
  struct Name {
    std::int64_t pid = 0;
    std::int32_t fd = -1;
    std::uint64_t bytes = 0;
    Token token{};
  };

  SharedSegment() = default;
  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) noexcept;
  ~SharedSegment();

  // Zeros behind the token. kExhausted or kUnavailable saying what the system refused.
  static Result<SharedSegment> create(std::size_t bytes);
  // kUnavailable when this process may not or cannot, or finds something else there: another user, another container.
  static Result<SharedSegment> open(const Name& name);

  Name name() const;
  // Nobody else can open it any more.
  void close_door();

  // Behind the token, at a multiple of 64 bytes.
  std::byte* data() const { return memory_ + kTokenBytes; }
  std::size_t size() const { return bytes_ - kTokenBytes; }

 private:
  static constexpr std::size_t kTokenBytes = 64;

  Status allocate(std::size_t bytes);
  Status map(std::size_t bytes);

  int fd_ = -1;
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace sirtaki::net
