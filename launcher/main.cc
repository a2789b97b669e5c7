// sirtakirun: starts the ranks of a job on this and other hosts and supervises them until they end (docs/launcher.md).
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "launcher/agent/agent.h"
#include "launcher/agent/host_facts.h"
#include "launcher/cli.h"
#include "launcher/job.h"
#include "launcher/join/joiner.h"
#include "launcher/links/measure.h"
#include "launcher/plan.h"

namespace {

constexpr int kUsageError = 2;

int fail(const sirtaki::Status& status) {
  std::fprintf(stderr, "sirtakirun: %s\n", std::string(status.text()).c_str());
  return kUsageError;
}

// Opens descriptors 0 to 2 if the caller closed them, so that no pipe of ours becomes standard output.
void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) < 0) {
      open("/dev/null", O_RDWR);
    }
  }
}

int run(const std::vector<std::string>& arguments) {
  using namespace sirtaki::launcher;
  if (arguments.size() == 1 && arguments.front() == "--agent") {
    return run_agent();
  }
  if (!arguments.empty() && arguments.front() == kMeasureLinks) {
    return measure_links({arguments.begin() + 1, arguments.end()});
  }
  if (arguments.size() == 2 && arguments.front() == kRouteTo) {
    std::puts(route_to(arguments.back()).c_str());
    return 0;
  }
  sirtaki::Result<CommandLine> line = parse_command_line(arguments);
  if (!line) {
    return fail(line.status());
  }
  if (line->print) {
    std::fputs(line->print->c_str(), stdout);
    return 0;
  }
  if (!line->run.join.address.empty()) {
    const RunOptions& run = line->run;
    return join_job({run.join.address, run.join.secret_file, run.np.value_or(1), run.start_timeout, run.option_lines},
                    sirtaki::process_environment());
  }
  sirtaki::Result<JobPlan> plan = make_plan(std::move(line->run), sirtaki::process_environment());
  if (!plan) {
    return fail(plan.status());
  }
  return Job(std::move(*plan)).run();
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sirtakirun: internal error: %s\n", error.what());
    return 1;
  }
}
