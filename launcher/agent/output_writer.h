// OutputWriter: writes to standard output and standard error from a thread of its own, so that a paused reader never
// stops the launcher from watching its ranks. RankFiles: the files of --output-dir.
//
// OutputWriter: any thread may write; its owner bounds the queue by backlog(). Closed output (EPIPE) is reported once,
// and later bytes for it are dropped.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "launcher/agent/agent_protocol.h"
#include "launcher/process/spawn.h"
#include "runtime/base/status.h"

namespace sirtaki::launcher {

class OutputWriter {
 public:
  struct Events {
    std::function<void()> on_drained;  // the backlog fell to zero; called on the writer's thread
    std::function<void()> on_broken;   // standard output is closed (EPIPE); called once, on the writer's thread
  };

  explicit OutputWriter(Events events);
  // Waits for a write in progress, if any; call finish() first.
  ~OutputWriter();

  void write(OutputStream stream, std::string bytes);
  std::size_t backlog() const;  // bytes not written yet
  // Waits until all bytes are written, at most `limit` (nullopt: without limit); returns false when bytes are left.
  bool finish(std::optional<Duration> limit);

 private:
  void run();

  Events events_;
  mutable std::mutex mutex_;  // guards the members shared with the writer's thread
  std::condition_variable changed_;
  std::deque<std::pair<OutputStream, std::string>> queue_;
  std::size_t backlog_ = 0;
  bool stopping_ = false;
  bool broken_[2] = {false, false};  // writer's thread only
  std::thread thread_;
};

class RankFiles {
 public:
  // Creates empty files DIR/rank.N/stdout and stderr for ranks 0..ranks-1. The files of ranks from `ranks` to
  // `places` - 1 are created at their first output. N has leading zeros if there are more than ten places.
  static Result<RankFiles> create(const std::string& directory, int ranks, int places);
  // Appends bytes. An error is returned once (disk full); later writes to that file are dropped.
  Status write(Rank rank, OutputStream stream, std::string_view bytes);

 private:
  struct File {
    FileDescriptor fd;
    std::string path;
    bool failed = false;

    Status open();
  };
  std::vector<File> files_;  // index: 2 * rank + stream
};

}  // namespace sirtaki::launcher
