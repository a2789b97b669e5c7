#include "launcher/process/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sirtaki::launcher {

namespace {

constexpr unsigned kNoExecSeal = 8U;  // MFD_NOEXEC_SEAL, which older headers lack

std::string limit_text() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return "the limit on open files here is " + std::to_string(limit.rlim_cur) +
         "; raise it (ulimit -n, LimitNOFILE= of systemd, --ulimit nofile= of docker) or run fewer ranks on this host";
}

// Returns an unlinked temporary file, for systems that refuse memfd_create().
int unnamed_file() {
  for (const std::string& folder : {std::string("/dev/shm"), "/run/user/" + std::to_string(geteuid()),
                                    std::string("/tmp"), std::string("/var/tmp")}) {
    std::string name = folder + "/sirtaki-XXXXXX";
    const int fd = mkostemp(name.data(), O_CLOEXEC);  // mode 0600
    if (fd >= 0) {
      unlink(name.c_str());
      return fd;
    }
  }
  return -1;
}

int any_memory_file() {
  // vm.memfd_noexec=2 requires the flag; kernels before 6.3 do not know it.
  for (const unsigned more : {kNoExecSeal, 0U}) {
    const int fd = memfd_create("sirtaki", MFD_CLOEXEC | more);
    if (fd >= 0) {
      return fd;
    }
  }
  return unnamed_file();
}

int with_large_number(int fd) {
  for (const int least : {100, 40, 10, 3}) {
    const int moved = fcntl(fd, F_DUPFD_CLOEXEC, least);
    if (moved >= 0) {
      return moved;
    }
  }
  return -1;
}

}  // namespace

rlim_t raise_open_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return 0;
  }
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  return before;
}

Status check_open_files(std::size_t needed, const std::string& for_what) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || needed <= limit.rlim_cur) {
    return Status();
  }
  return {Code::kExhausted, for_what + " needs about " + std::to_string(needed) + " open files, but " + limit_text()};
}

std::string explain_errno(int error) {
  return strerror(error) + (error == EMFILE ? ": " + limit_text() : std::string());
}

Result<FileDescriptor> memory_file(const std::string& content) {
  const FileDescriptor small(any_memory_file());
  FileDescriptor file(small.get() < 0 ? -1 : with_large_number(small.get()));
  if (file.get() < 0 || fchmod(file.get(), 0600) != 0 ||
      write(file.get(), content.data(), content.size()) != static_cast<ssize_t>(content.size()) ||
      lseek(file.get(), 0, SEEK_SET) != 0) {
    return unavailable(std::string("no file for the job's secret could be made in memory (memfd_create) or in "
                                   "/dev/shm, /run/user, /tmp or /var/tmp: ") +
                       explain_errno(errno));
  }
  return file;
}

}  // namespace sirtaki::launcher
