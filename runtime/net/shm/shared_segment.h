// SharedSegment: anonymous memory that several processes of one host map.
//
// For: SharedMemory, which owns it; one thread at a time. The memory is allocated before it is mapped and sealed
// against shrinking, so no access ever raises SIGBUS. It is freed with the last process that maps it, even after
// SIGKILL; forked children do not map it. Other processes open it by process id and descriptor number of the creator,
// and verify a secret token inside.
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
  // Returns the data by which another process opens the segment. Send it over authenticated connections only.
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

  // Creates a segment of zeros behind the token. Returns kExhausted or kUnavailable with the call that the system
  // refused.
  static Result<SharedSegment> create(std::size_t bytes);
  // Opens the segment of another process. Returns kUnavailable without permission, or if the token differs, as with
  // another user or container.
  static Result<SharedSegment> open(const Name& name);

  Name name() const;
  // Closes the descriptor, so that no other process can open the segment any more.
  void close_door();

  // Returns the memory behind the token, aligned to 64 bytes.
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
