#include "launcher/agent/supervisor.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "launcher/process/processes.h"
#include "launcher/process/spawn.h"

namespace sirtaki::launcher {

namespace {

// Returns the signals that the supervisor takes; the agent gets all but SIGCHLD, too.
sigset_t signals_of_supervisor(bool joined) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  for (const int number : {SIGTERM, SIGHUP, SIGINT, SIGQUIT}) {
    // A signal that the user's shell ignores (nohup) is no wish to leave.
    if (joined ? !is_ignored(number) : number != SIGQUIT) {
      sigaddset(&signals, number);
    }
  }
  if (joined && !is_ignored(SIGTSTP)) {
    sigaddset(&signals, SIGTSTP);
    sigaddset(&signals, SIGCONT);
  }
  return signals;
}

// Stops this process when its agent has stopped after SIGTSTP, so that a shell which waits for this process takes its
// terminal back. `wish` is the last of SIGTSTP and SIGCONT that the agent got.
void follow_stop(pid_t agent, int wish) {
  sigset_t pending;
  sigpending(&pending);
  if (wish == SIGTSTP && sigismember(&pending, SIGCONT) == 0) {
    raise(SIGSTOP);
  } else if (wish == SIGCONT) {
    kill(agent, SIGCONT);  // it was sent before the agent had stopped
  }
}

// Lets the agent say, beside its exit code, that its launcher is gone.
class Note {
 public:
  Note() {
    int ends[2] = {-1, -1};
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0) {
      in_.reset(ends[0]);
      out_.reset(ends[1]);
    }
  }
  void write_lost() const { [[maybe_unused]] const ssize_t written = write(out_.get(), "", 1); }
  bool says_lost() const {
    char byte = 0;
    return read(in_.get(), &byte, 1) == 1;
  }

 private:
  FileDescriptor in_;
  FileDescriptor out_;
};

// Waits for the agent and passes signals on; returns once all processes below have ended.
AgentEnd guard(pid_t agent, const sigset_t& signals, bool joined, const Note& note) {
  prctl(PR_SET_NAME, "sirtaki-warden", 0, 0, 0);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  dup2(null, 0);  // the agent alone must hold the pipes, or neither side would see their end
  dup2(null, 1);
  close(null);
  int status = 0;
  int wish = 0;
  bool asked = false;
  while (true) {
    int number = 0;
    sigwait(&signals, &number);
    if (number != SIGCHLD) {
      const bool stops = number == SIGTSTP || number == SIGCONT;
      wish = stops ? number : wish;
      asked = asked || !stops;
      kill(agent, joined ? number : SIGTERM);
      continue;
    }
    for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0;) {
      if (WIFSTOPPED(status)) {
        pid == agent ? follow_stop(agent, wish) : void();
      } else if (pid == agent) {
        kill_descendants(kSweepLimit);
        return {exit_code_of(status), note.says_lost(), asked};
      }
    }
  }
}

}  // namespace

AgentEnd supervise(bool joined, const std::function<void()>& release, const std::function<AgentEnd()>& run) {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGUSR1, SIG_IGN);  // a scheduler's warning to all processes is meant for the ranks
  signal(SIGUSR2, SIG_IGN);
  become_subreaper();
  const sigset_t signals = signals_of_supervisor(joined);
  sigset_t before;
  sigprocmask(SIG_BLOCK, &signals, &before);
  const Note note;
  const pid_t supervisor = getpid();
  const pid_t pid = fork();
  if (pid > 0) {
    release();
    const AgentEnd end = guard(pid, signals, joined, note);
    if (joined) {
      sigprocmask(SIG_SETMASK, &before, nullptr);
    }
    return end;
  }
  sigprocmask(SIG_UNBLOCK, &signals, nullptr);
  become_subreaper();
  // Without a supervisor (fork failed) the agent still does its own work.
  if (pid < 0) {
    return run();
  }
  if (joined) {
    setpgid(0, 0);  // Ctrl-C reaches the supervisor alone, which passes it on, so that it counts once
  }
  prctl(PR_SET_PDEATHSIG, joined ? SIGQUIT : SIGTERM, 0, 0, 0);
  const AgentEnd end = getppid() == supervisor ? run() : AgentEnd();
  if (end.lost) {
    note.write_lost();
  }
  std::exit(end.exit_code);
}

}  // namespace sirtaki::launcher
