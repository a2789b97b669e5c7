#include "runtime/rendezvous/link/dial.h"

#include <algorithm>
#include <future>
#include <memory>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/rendezvous/link/dialing.h"

namespace sirtaki::rendezvous {

namespace {

Status verdict(const DialOptions& options, const Dialing& dialing, const Status& status) {
  if (status.code() != Code::kTimeout) {
    return status.with_context("server " + dialing.last_address());
  }
  return unavailable("cannot reach " + options.who + " at " + dialing.last_address() + " within " +
                     seconds_text(options.connect_timeout) + " (" + std::to_string(dialing.attempts()) +
                     " attempts); last: " + std::string(status.text()) + "; fix: " + options.fix);
}

Dialed dialed_of(Greeted greeted) {
  Dialed dialed;
  dialed.local = local_address_of(greeted.socket.native_handle());
  dialed.fd = UniqueFd(greeted.socket.release());
  dialed.following = std::move(greeted.rest);
  dialed.session = greeted.session;
  return dialed;
}

}  // namespace

Result<Dialed> dial(AsioLoop& loop, const DialOptions& options, MoveFunction<bool()>& cancelled) {
  SRT_CHECK(!loop.in_loop());
  if (!options.secret.is_set()) {
    return invalid_argument("connecting needs the job's secret; none is set");
  }
  for (const std::string& address : options.addresses) {
    SRT_TRY(parse_host_port(address).status());
  }
  Dialing::Setup setup;
  setup.loop = &loop;
  setup.secret = options.secret;
  setup.purpose = options.purpose;
  setup.addresses = options.addresses;
  setup.hello = options.hello;
  setup.timeout = options.connect_timeout;
  setup.handshake_timeout = std::min(options.handshake_timeout, kLongestTimeout);
  setup.silence_timeout = options.silence_timeout;
  const auto dialing = std::make_shared<Dialing>(std::move(setup));
  const auto promise = std::make_shared<std::promise<Result<Dialed>>>();
  std::future<Result<Dialed>> dialed = promise->get_future();
  loop.run_sync([&] {
    dialing->run([promise, &options, raw = dialing.get()](Result<Greeted> result) {
      promise->set_value(result ? Result<Dialed>(dialed_of(std::move(*result)))
                                : Result<Dialed>(verdict(options, *raw, result.status())));
    });
  });
  const auto stop = [&](Status why) -> Result<Dialed> {
    loop.run_sync([&] { dialing->abandon(); });
    return why;
  };
  do {
    if (cancelled && cancelled()) {
      return stop({Code::kAborted, "connecting was cancelled"});
    }
    if (loop.in_loop()) {
      return Status(Code::kShutdown, "the loop has been stopped");
    }
  } while (dialed.wait_for(kCancelSlice) != std::future_status::ready);
  return dialed.get();
}

}  // namespace sirtaki::rendezvous
