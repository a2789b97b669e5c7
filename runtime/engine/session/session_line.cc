// Session, part: the line of an elastic job, which outlives its sessions, for the owner of the sessions.
#include "runtime/engine/epoch/control_line.h"
#include "runtime/engine/session/session.h"

namespace sirtaki::engine {

Result<std::shared_ptr<ControlLine>> connect_line(const Config& config, const JobSpec& job,
                                                  const std::function<bool()>& interrupted) {
  return ControlLine::connect(config, job.rendezvous, job.secret, interrupted);
}

void admit(ControlLine& line, bool admits) {
  line.admit(admits);
}

Status Session::leave_soon() {
  if (!job_.line) {
    return {Code::kUnsupported, "this job is not elastic, so no rank can leave it before its end; set elastic.min"};
  }
  job_.line->leave_soon();
  return {};
}

Growth growth(const ControlLine& line) {
  return {line.grows(), line.grows() && !line.has_state(), line.wanted(), line.announced()};
}

void agree(ControlLine& line, std::uint32_t change) {
  line.agree(change);
}

void cut(ControlLine& line) {
  line.cut();
}

std::set<StreamId> committed_streams(ControlLine& line) {
  return line.take_committed();
}

}  // namespace sirtaki::engine
