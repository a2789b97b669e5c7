// The C interface: local updates.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "adapters/c/borrowed_json.h"
#include "adapters/c/convert_local.h"
#include "adapters/c/default_session.h"
#include "adapters/c/last_error.h"
#include "adapters/c/sirtaki.h"
#include "runtime/base/telemetry/log.h"
#include "runtime/local_updates/choice.h"
#include "runtime/local_updates/session_exchange.h"
#include "runtime/local_updates/updater.h"

using sirtaki::Logger;
using sirtaki::Result;
using sirtaki::Status;
using sirtaki::adapters::Active;
using sirtaki::adapters::borrowed_json;
using sirtaki::adapters::DefaultSession;
using sirtaki::adapters::guarded;
using sirtaki::local_updates::FragmentLayout;
using sirtaki::local_updates::LocalOutcome;
using sirtaki::local_updates::LocalUpdater;
using sirtaki::local_updates::SessionExchange;

// The object behind a handle. Members are destroyed in reverse order: the updater uses those above it.
struct sirtaki_local_training {
  pid_t process = getpid();
  std::shared_ptr<Active> owner;
  std::unique_ptr<Logger> log;
  std::vector<FragmentLayout> fragments;
  std::unique_ptr<SessionExchange> exchange;
  std::unique_ptr<LocalUpdater> updater;
};

namespace {

Result<std::unique_ptr<sirtaki_local_training>> open_training(const sirtaki_local_args& args) {
  auto made = std::make_unique<sirtaki_local_training>();
  SRT_ASSIGN(const auto options, sirtaki::adapters::to_local_options(args));
  SRT_ASSIGN(auto model, sirtaki::adapters::to_local_model(args));
  SRT_ASSIGN(made->owner, DefaultSession::instance().need());
  sirtaki::engine::Session& session = *made->owner->session;
  SRT_ASSIGN(made->log, Logger::create(session.config(), session.rank()));
  made->fragments = model.fragments;
  SRT_ASSIGN(made->exchange, SessionExchange::open(session, model, options));
  SRT_ASSIGN(made->updater, LocalUpdater::make(options, std::move(model), *made->exchange, made->log.get()));
  return made;
}

// Runs a collective call and writes its outcome.
template <class Call>
sirtaki_status run(sirtaki_local local, sirtaki_local_outcome* outcome, Call&& call) {
  return guarded([&]() -> Status {
    if (local == nullptr) {
      return sirtaki::invalid_argument("local is NULL");
    }
    // Check the struct of the caller before the call can send anything.
    SRT_TRY(sirtaki::adapters::from_outcome({}, {}, outcome));
    SRT_ASSIGN([[maybe_unused]] const auto active, DefaultSession::instance().need(local->owner->generation));
    SRT_ASSIGN(const LocalOutcome done, std::forward<Call>(call)(*local->updater));
    return sirtaki::adapters::from_outcome(done, local->updater->pace(), outcome);
  });
}

Result<std::span<const float>> anchor_of(const sirtaki_local_training& local, int index) {
  for (std::size_t p = 0; p < local.fragments.size(); ++p) {
    const FragmentLayout& fragment = local.fragments[p];
    const auto found = std::ranges::find(fragment.tensors, index);
    if (found == fragment.tensors.end()) {
      continue;
    }
    const auto place = static_cast<std::size_t>(found - fragment.tensors.begin());
    const std::int64_t end = place + 1 < fragment.offsets.size() ? fragment.offsets[place + 1] : fragment.numel;
    const auto begin = static_cast<std::size_t>(fragment.offsets[place]);
    return local.updater->anchors()[p].values().subspan(begin, static_cast<std::size_t>(end) - begin);
  }
  return sirtaki::invalid_argument("parameter " + std::to_string(index) + " is not one of the local updates'");
}

}  // namespace

extern "C" {

sirtaki_status sirtaki_check_interval(const char* interval) {
  return guarded([&]() -> Status {
    if (interval == nullptr) {
      return sirtaki::invalid_argument("interval is NULL");
    }
    return sirtaki::local_updates::local_options(std::string_view(interval)).status();
  });
}

sirtaki_status sirtaki_local_open(const sirtaki_local_args* args, sirtaki_local* local) {
  return guarded([&]() -> Status {
    if (args == nullptr || local == nullptr) {
      return sirtaki::invalid_argument("args or local is NULL");
    }
    SRT_ASSIGN(auto made, open_training(*args));
    *local = made.release();
    return {};
  });
}

sirtaki_status sirtaki_local_start(sirtaki_local local, sirtaki_local_outcome* outcome) {
  return run(local, outcome, [](LocalUpdater& updater) { return updater.start(); });
}

sirtaki_status sirtaki_local_step(sirtaki_local local, const sirtaki_local_step_args* step,
                                  sirtaki_local_outcome* outcome) {
  return run(local, outcome, [&](LocalUpdater& updater) -> Result<LocalOutcome> {
    if (step == nullptr) {
      return sirtaki::invalid_argument("step is NULL");
    }
    SRT_ASSIGN(const auto made, sirtaki::adapters::to_local_step(*step));
    return updater.step(made);
  });
}

sirtaki_status sirtaki_local_drain(sirtaki_local local, sirtaki_local_outcome* outcome) {
  return run(local, outcome, [](LocalUpdater& updater) { return updater.drain(); });
}

sirtaki_status sirtaki_local_synchronous(sirtaki_local local, int wanted, sirtaki_local_outcome* outcome) {
  return run(local, outcome, [&](LocalUpdater& updater) { return updater.synchronous(wanted != 0); });
}

sirtaki_status sirtaki_local_anchor(sirtaki_local local, int32_t index, float* out, int64_t numel) {
  return guarded([&]() -> Status {
    if (local == nullptr || numel < 0 || (out == nullptr && numel > 0)) {
      return sirtaki::invalid_argument("local or out is NULL, or numel is negative");
    }
    SRT_ASSIGN(const auto values, anchor_of(*local, index));
    if (static_cast<std::size_t>(numel) != values.size()) {
      return sirtaki::invalid_argument("parameter " + std::to_string(index) + " has " + std::to_string(values.size()) +
                                       " elements, not " + std::to_string(numel));
    }
    std::ranges::copy(values, out);
    return {};
  });
}

sirtaki_status sirtaki_local_save(sirtaki_local local, void* out, int64_t room, int64_t* bytes) {
  return guarded([&]() -> Status {
    if (local == nullptr || bytes == nullptr || room < 0) {
      return sirtaki::invalid_argument("local or bytes is NULL, or room is negative");
    }
    SRT_ASSIGN(const auto saved, local->updater->saved());
    *bytes = static_cast<int64_t>(saved.size());
    if (out != nullptr && *bytes <= room) {
      std::ranges::copy(saved, static_cast<std::byte*>(out));
    }
    return {};
  });
}

sirtaki_status sirtaki_local_restore(sirtaki_local local, const void* in, int64_t bytes) {
  return guarded([&]() -> Status {
    if (local == nullptr || bytes < 0 || (in == nullptr && bytes > 0)) {
      return sirtaki::invalid_argument("local or in is NULL, or bytes is negative");
    }
    return local->updater->restore({static_cast<const std::byte*>(in), static_cast<std::size_t>(bytes)});
  });
}

void sirtaki_local_close(sirtaki_local local) {
  // A forked child has a copy of the memory, but no thread that could finish merges in flight.
  if (local == nullptr || local->process != getpid()) {
    return;
  }
  (void)guarded([&]() -> Status {
    delete local;
    return {};
  });
}

const char* sirtaki_local_stats_json(sirtaki_local local) {
  return borrowed_json([&]() -> Result<std::string> {
    if (local == nullptr) {
      return sirtaki::invalid_argument("local is NULL");
    }
    return local->updater->stats_json();
  });
}

}  // extern "C"
