#include "runtime/net/shm/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

namespace sirtaki::net {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr const char* kLabel = "sirtaki";
constexpr unsigned kNoExecSeal = 8U;  // MFD_NOEXEC_SEAL, which older headers lack
// A signal ends an allocation and undoes it, so memory is allocated in small pieces, with a limited number of retries.
constexpr std::size_t kStepBytes = std::size_t{256} * 1024;
constexpr int kTries = 1000;

Status refused(Code code, const std::string& what, int error) {
  return {code, what + ": " + std::generic_category().message(error)};
}

int allocate_all(int fd, std::size_t bytes) {
  for (std::size_t begin = 0; begin < bytes; begin += kStepBytes) {
    const auto size = static_cast<off_t>(std::min(kStepBytes, bytes - begin));
    int error = EINTR;
    for (int i = 0; i < kTries && error == EINTR; ++i) {
      error = ::posix_fallocate(fd, static_cast<off_t>(begin), size);
    }
    if (error != 0) {
      return error;
    }
  }
  return 0;
}

// A wrong descriptor number may name a pipe or a device, on which opening has side effects.
bool is_ours(const std::string& path) {
  std::array<char, 64> target{};
  const ssize_t length = ::readlink(path.c_str(), target.data(), target.size() - 1);
  return length > 0 && std::string(target.data()).starts_with("/memfd:" + std::string(kLabel));
}

}  // namespace

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      memory_(std::exchange(other.memory_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

SharedSegment& SharedSegment::operator=(SharedSegment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedSegment::~SharedSegment() {
  close_door();
  if (memory_ != nullptr) {
    ::munmap(memory_, bytes_);
  }
}

Status SharedSegment::allocate(std::size_t bytes) {
  // Beyond this limit the system sends a signal that ends the process.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur) {
    return {Code::kExhausted, "no " + std::to_string(bytes) + " bytes of shared memory: the limit on file size " +
                                  std::to_string(limit.rlim_cur) + " (ulimit -f) counts for it"};
  }
  // vm.memfd_noexec=2 requires the second flag, which kernels before 6.3 reject.
  fd_ = ::memfd_create(kLabel, MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecSeal);
  if (fd_ < 0) {
    fd_ = ::memfd_create(kLabel, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  }
  if (fd_ < 0) {
    return refused(Code::kUnavailable, "the system makes no shared memory (memfd_create)", errno);
  }
  if (const int error = allocate_all(fd_, bytes); error != 0) {
    return refused(Code::kExhausted, "no " + std::to_string(bytes) + " bytes of shared memory", error);
  }
  if (::fcntl(fd_, F_ADD_SEALS, kSeals) != 0) {
    return refused(Code::kUnavailable, "shared memory cannot be sealed", errno);
  }
  return {};
}

Status SharedSegment::map(std::size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (memory == MAP_FAILED) {
    return refused(Code::kExhausted, "shared memory cannot be mapped", errno);
  }
  memory_ = static_cast<std::byte*>(memory);
  bytes_ = bytes;
  // Data loaders that the program forks may outlive it, and would keep the memory.
  if (::madvise(memory, bytes, MADV_DONTFORK) != 0) {
    return refused(Code::kUnavailable, "shared memory cannot be kept from forked processes", errno);
  }
  return {};
}

Result<SharedSegment> SharedSegment::create(std::size_t bytes) {
  SharedSegment segment;
  SRT_TRY(segment.allocate(bytes));
  SRT_TRY(segment.map(bytes));
  Token token{};
  if (::getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    return refused(Code::kUnavailable, "no random bytes", errno);
  }
  std::memcpy(segment.memory_, token.data(), token.size());
  return segment;
}

Result<SharedSegment> SharedSegment::open(const Name& name) {
  const std::string path = "/proc/" + std::to_string(name.pid) + "/fd/" + std::to_string(name.fd);
  const std::string where = "the shared memory of process " + std::to_string(name.pid);
  if (!is_ours(path)) {
    return Status(Code::kUnavailable, where + " is not to be seen from here (another user or another container)");
  }
  SharedSegment segment;
  segment.fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (segment.fd_ < 0) {
    return refused(Code::kUnavailable, where + " cannot be opened", errno);
  }
  struct stat status {};
  const int seals = ::fcntl(segment.fd_, F_GET_SEALS);  // -1 if the file has no seals
  if (::fstat(segment.fd_, &status) != 0 || static_cast<std::uint64_t>(status.st_size) != name.bytes || seals < 0 ||
      (seals & kSeals) != kSeals) {
    return Status(Code::kUnavailable, where + " is not the one it told of");
  }
  SRT_TRY(segment.map(static_cast<std::size_t>(name.bytes)));
  if (std::memcmp(segment.memory_, name.token.data(), name.token.size()) != 0) {
    return Status(Code::kUnavailable, where + " is not the one it told of");
  }
  segment.close_door();
  return segment;
}

SharedSegment::Name SharedSegment::name() const {
  Name name;
  name.pid = ::getpid();
  name.fd = fd_;
  name.bytes = bytes_;
  std::memcpy(name.token.data(), memory_, name.token.size());
  return name;
}

void SharedSegment::close_door() {
  if (fd_ >= 0) {
    ::close(std::exchange(fd_, -1));
  }
}

}  // namespace sirtaki::net
