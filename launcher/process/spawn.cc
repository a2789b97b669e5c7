#include "launcher/process/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "launcher/process/descriptors.h"

namespace sirtaki::launcher {

namespace {

enum class Stage : int { kDirectory = 1, kExec = 2, kOther = 3 };

struct ChildFailure {
  Stage stage = Stage::kOther;
  int error = 0;
};

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};

std::optional<Pipe> make_pipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) {
    return std::nullopt;
  }
  return Pipe{FileDescriptor(fds[0]), FileDescriptor(fds[1])};
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  out.reserve(strings.size() + 1);
  for (const std::string& text : strings) {
    out.push_back(const_cast<char*>(text.c_str()));  // execve does not write through the pointer
  }
  out.push_back(nullptr);
  return out;
}

std::string variable(const std::vector<std::string>& env, std::string_view name) {
  std::string value;
  for (const std::string& entry : env) {
    if (entry.size() > name.size() && entry[name.size()] == '=' && entry.compare(0, name.size(), name) == 0) {
      value = entry.substr(name.size() + 1);
    }
  }
  return value;
}

// Arguments of the child, prepared before the fork: after it only async-signal-safe calls are allowed, because this
// process has other threads.
struct ChildPlan {
  const char* path;
  char* const* argv;
  char* const* env;
  const char* cwd;  // nullptr: the directory of this process
  int in, out, err, report;
  int inherit_fd;
  int death_signal;
  rlim_t open_files;
  const int* ignored;
  std::size_t ignored_count;
  pid_t parent;
};

[[noreturn]] void give_up(const ChildPlan& plan, Stage stage) {
  const ChildFailure failure{stage, errno};
  [[maybe_unused]] const ssize_t written = write(plan.report, &failure, sizeof(failure));
  _exit(127);
}

[[noreturn]] void run_child(const ChildPlan& plan) {
  setsid();
  if (plan.death_signal != 0) {
    prctl(PR_SET_PDEATHSIG, plan.death_signal, 0, 0, 0);
    if (getppid() != plan.parent) {
      _exit(127);
    }
  }
  for (int number = 1; number < NSIG; ++number) {
    signal(number, SIG_DFL);
  }
  for (std::size_t i = 0; i < plan.ignored_count; ++i) {
    signal(plan.ignored[i], SIG_IGN);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (dup2(plan.in, 0) < 0 || dup2(plan.out, 1) < 0 || dup2(plan.err, 2) < 0) {
    give_up(plan, Stage::kOther);
  }
  // Descriptors this process inherited itself (a script's pipes) lack close-on-exec; before Linux 5.11 they stay open.
  // The C library has a function for this from glibc 2.34 on only.
  syscall(__NR_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
  if (plan.inherit_fd >= 0 && fcntl(plan.inherit_fd, F_SETFD, 0) != 0) {
    give_up(plan, Stage::kOther);
  }
  rlimit limit{};
  if (plan.open_files != 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = plan.open_files;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  if (plan.cwd != nullptr && chdir(plan.cwd) != 0) {
    give_up(plan, Stage::kDirectory);
  }
  execve(plan.path, plan.argv, plan.env);
  give_up(plan, Stage::kExec);
}

SpawnError explain_exec(const std::string& command, const std::string& path, int error) {
  if (error == ENOENT && access(path.c_str(), F_OK) == 0) {
    return {127,
            "'" + path + "' is there, but the interpreter in its first line is not; install it or correct the line"};
  }
  if (error == ENOENT || error == ENOTDIR) {
    return {127, "command not found: '" + command + "'"};
  }
  if (error == EACCES) {
    return {126, "'" + path + "' is not executable; run chmod +x on it, or put its interpreter in front " + "(python " +
                     command + ")"};
  }
  if (error == ENOEXEC) {
    return {126, "'" + path + "' is not a program the kernel can run; put its interpreter in front (python " + command +
                     ") or begin it with a '#!' line"};
  }
  return {126, "'" + path + "' cannot be started: " + strerror(error)};
}

SpawnError explain(const SpawnSpec& spec, const std::string& path, const ChildFailure& failure) {
  switch (failure.stage) {
    case Stage::kDirectory:
      return {1, "the working directory '" + spec.cwd + "' cannot be entered: " + strerror(failure.error) +
                     "; every host needs the program and its data in a folder with the path of that in which " +
                     "sirtakirun is started"};
    case Stage::kExec:
      return explain_exec(spec.argv[0], path, failure.error);
    case Stage::kOther:
      break;
  }
  return {1, std::string("no process could be started: ") + strerror(failure.error)};
}

Status fail(SpawnError* out, SpawnError error) {
  Status status = unavailable(error.text);
  if (out != nullptr) {
    *out = std::move(error);
  }
  return status;
}

SpawnError not_found(const std::string& command) {
  std::string hint;
  if (access(command.c_str(), F_OK) == 0) {
    hint = command.ends_with(".py") ? "; a script needs its interpreter: python " + command
                                    : "; for the file in this directory write ./" + command;
  }
  return {127, "command not found: '" + command + "'" + hint};
}

struct ChildPipes {
  FileDescriptor child_in;
  FileDescriptor parent_in;
  Pipe out, err, report;
};

std::optional<ChildPipes> open_pipes(bool pipe_stdin) {
  ChildPipes pipes;
  if (pipe_stdin) {
    auto in = make_pipe();
    if (!in) {
      return std::nullopt;
    }
    pipes.child_in = std::move(in->read);
    pipes.parent_in = std::move(in->write);
  } else {
    pipes.child_in.reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  auto out = make_pipe();
  auto err = make_pipe();
  auto report = make_pipe();
  if (pipes.child_in.get() < 0 || !out || !err || !report) {
    return std::nullopt;
  }
  pipes.out = std::move(*out);
  pipes.err = std::move(*err);
  pipes.report = std::move(*report);
  return pipes;
}

// Forks with all signals blocked: a handler of this process must not run in the child.
pid_t fork_quietly() {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = fork();
  if (pid != 0) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  return pid;
}

}  // namespace

void FileDescriptor::reset(int fd) {
  if (fd_ >= 0) {
    close(fd_);
  }
  fd_ = fd;
}

std::string find_program(const std::string& command, const std::string& path_variable) {
  if (command.find('/') != std::string::npos) {
    return command;
  }
  std::string_view rest = path_variable.empty() ? "/usr/local/bin:/usr/bin:/bin" : std::string_view(path_variable);
  while (!command.empty()) {
    const std::size_t colon = rest.find(':');
    const std::string_view folder = rest.substr(0, colon);
    std::string path = (folder.empty() ? "." : std::string(folder)) + "/" + command;
    struct stat info {};
    if (stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0) {
      return path;
    }
    if (colon == std::string_view::npos) {
      break;
    }
    rest.remove_prefix(colon + 1);
  }
  return {};
}

Result<ChildProcess> spawn(const SpawnSpec& spec, SpawnError* error) {
  const std::string path = find_program(spec.argv.at(0), variable(spec.env, "PATH"));
  if (path.empty()) {
    return fail(error, not_found(spec.argv[0]));
  }
  auto pipes = open_pipes(spec.pipe_stdin);
  if (!pipes) {
    return fail(error, {1, "no pipe could be opened: " + explain_errno(errno)});
  }
  const std::vector<char*> argv = pointers(spec.argv);
  const std::vector<char*> env = pointers(spec.env);
  const ChildPlan plan{path.c_str(),
                       argv.data(),
                       env.data(),
                       spec.cwd.empty() ? nullptr : spec.cwd.c_str(),
                       pipes->child_in.get(),
                       pipes->out.write.get(),
                       pipes->err.write.get(),
                       pipes->report.write.get(),
                       spec.inherit_fd,
                       spec.death_signal,
                       spec.open_files,
                       spec.ignored.data(),
                       spec.ignored.size(),
                       getpid()};
  const pid_t pid = fork_quietly();
  if (pid == 0) {
    run_child(plan);
  }
  if (pid < 0) {
    return fail(error, {1, std::string("no process could be started: ") + strerror(errno)});
  }
  pipes->report.write.reset();
  ChildFailure failure;
  ssize_t got = 0;
  do {
    got = read(pipes->report.read.get(), &failure, sizeof(failure));
  } while (got < 0 && errno == EINTR);
  if (got != 0) {
    waitpid(pid, nullptr, 0);
    return fail(error, explain(spec, path, failure));
  }
  ChildProcess child;
  child.pid = pid;
  child.in = std::move(pipes->parent_in);
  child.out = std::move(pipes->out.read);
  child.err = std::move(pipes->err.read);
  return child;
}

}  // namespace sirtaki::launcher
