#include "runtime/local_updates/session_exchange.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "runtime/base/check.h"

namespace sirtaki::local_updates {
namespace {

std::string channel_name(const std::string& name, Channel channel) {
  switch (channel.kind) {
    case ReportKind::kSnapshot:
      return name + ".snapshot." + std::to_string(channel.fragment);
    case ReportKind::kVote:
      return name + ".vote." + std::to_string(channel.fragment);
    case ReportKind::kRound:
      return name + ".round";
    case ReportKind::kDigest:
      return name + ".digest";
    case ReportKind::kBuffers:
      return name + ".buffers";
  }
  return name;
}

// The first byte of a report in an allreduce. A rank in join() adds zeros.
constexpr std::byte kPresent{1};
// The largest array of reports in an allreduce. Each rank sends all of it to each of the others.
constexpr std::size_t kMostSummed = 256;

// Returns whether steps wait for reports of this kind, and those of all ranks are small.
bool is_summed(ReportKind kind, std::size_t bytes_of_rank, int ranks) {
  const bool awaited = kind == ReportKind::kSnapshot || kind == ReportKind::kVote;
  return awaited && (1 + bytes_of_rank) * static_cast<std::size_t>(ranks) <= kMostSummed;
}

// Returns the reports in `all`, each of so many bytes; summed ones without their first byte, and empty if it is 0.
Reports split(std::span<const std::byte> all, std::size_t each, bool summed) {
  Reports reports;
  for (; each > 0 && each <= all.size(); all = all.subspan(each)) {
    const auto part = all.first(each).subspan(summed ? 1 : 0);
    const bool absent = summed && all.front() != kPresent;
    reports.emplace_back(part.begin(), absent ? part.begin() : part.end());
  }
  return reports;
}

TensorView view_of(std::span<float> data) {
  return {reinterpret_cast<std::byte*>(data.data()), static_cast<std::int64_t>(data.size()), DType::kF32, {}};
}

}  // namespace

SessionExchange::SessionExchange(engine::Session& session, const LocalOptions& options)
    : session_(session), name_(options.name), ranks_(options.ranks) {}

Rank SessionExchange::rank() const {
  const auto place = std::ranges::find(ranks_, session_.rank());
  return ranks_.empty() ? session_.rank() : static_cast<Rank>(place - ranks_.begin());
}

int SessionExchange::size() const {
  return ranks_.empty() ? session_.membership().size() : static_cast<int>(ranks_.size());
}

bool SessionExchange::one_host() const {
  const std::vector<std::vector<Rank>> hosts = session_.membership().hosts();
  const auto has_all = [this](const std::vector<Rank>& host) {
    return std::ranges::all_of(ranks_, [&host](Rank rank) { return std::ranges::count(host, rank) != 0; });
  };
  return ranks_.empty() ? hosts.size() == 1 : std::ranges::any_of(hosts, has_all);
}

Duration SessionExchange::latency() const {
  return ranks_.empty() && !one_host() ? session_.distant_latency() : Duration(0);
}

Result<std::unique_ptr<SessionExchange>> SessionExchange::open(engine::Session& session, const LocalModel& model,
                                                               const LocalOptions& options) {
  SRT_TRY(check(options));
  auto exchange = std::unique_ptr<SessionExchange>(new SessionExchange(session, options));
  for (const FragmentLayout& layout : model.fragments) {
    SRT_TRY(exchange->open_fragment(model, layout, options));
  }
  return exchange;
}

Status SessionExchange::open_fragment(const LocalModel& model, const FragmentLayout& layout,
                                      const LocalOptions& options) {
  Fragment fragment;
  engine::StreamSpec spec;
  spec.name = name_ + "." + std::to_string(fragments_.size());
  spec.ranks = ranks_;
  spec.reduce_op = ReduceOp::kSum;
  spec.commit_gate = false;  // the vote on a merge settles what has arrived
  for (const int index : layout.tensors) {
    const LocalTensor& tensor = model.tensors[static_cast<std::size_t>(index)];
    engine::StreamTensor sent;
    sent.name = tensor.name;
    sent.dims = tensor.dims;
    const auto place = static_cast<int>(fragment.tensors.size());
    spec.tensors.push_back(std::move(sent));
    spec.order.push_back(place);
    fragment.tensors.push_back(place);
  }
  fragment.offsets = layout.offsets;
  fragment.offsets.push_back(layout.numel);
  std::vector<std::string> codecs = codecs_of(options);
  codecs.insert(codecs.begin(), "none");
  const std::string name = spec.name;
  for (const std::string& codec : codecs) {
    const std::string number = fragment.streams.size() > 1 ? std::to_string(fragment.streams.size()) : "";
    spec.name = fragment.streams.empty() ? name : name + ".compressed" + number;
    spec.codec = codec;
    SRT_ASSIGN(const StreamId stream, session_.open_stream(spec, options.timeout));
    fragment.streams.push_back(stream);
  }
  fragments_.push_back(std::move(fragment));
  return {};
}

// Operations in flight borrow memory, so it goes to the session with them. This rank cannot wait here: others may post
// a report late or never, and Ctrl-C may be the reason for the end of this one.
SessionExchange::~SessionExchange() {
  for (const auto& [channel, posted] : posted_) {
    session_.forget(posted.request, posted.bytes);
  }
  for (const Fragment& fragment : fragments_) {
    for (const StreamId stream : fragment.streams) {
      static_cast<void>(session_.stream(stream).close());
    }
  }
}

TimePoint SessionExchange::now() const {
  return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now());
}

// ---- reports ----

Status SessionExchange::post(Channel channel, ConstBytes mine) {
  const auto [place, fresh] = posted_.try_emplace(channel);
  SRT_CHECK(fresh);
  Posted& posted = place->second;
  engine::OpSpec op;
  op.name = channel_name(name_, channel);
  op.ranks = ranks_;
  posted.summed = is_summed(channel.kind, mine.size(), size());
  if (posted.summed) {
    op.kind = OpKind::kAllreduce;
    posted.each = 1 + mine.size();
    posted.bytes = std::make_shared<std::vector<std::byte>>(posted.each * static_cast<std::size_t>(size()));
    const auto part = posted.bytes->begin() + static_cast<std::ptrdiff_t>(posted.each) * rank();
    *part = kPresent;
    std::ranges::copy(mine, part + 1);
  } else {
    op.kind = OpKind::kAllgather;
    posted.each = mine.size();
    posted.bytes = std::make_shared<std::vector<std::byte>>(mine.begin(), mine.end());
  }
  op.input = {posted.bytes->data(), static_cast<std::int64_t>(posted.bytes->size()), DType::kU8, {}};
  op.output = op.kind == OpKind::kAllreduce ? op.input : op.output;
  op.dims = {op.input.numel};
  std::vector<engine::OpSpec> ops;
  ops.push_back(std::move(op));
  auto requests = session_.submit(std::move(ops));
  if (!requests) {
    posted_.erase(place);
    return requests.status();
  }
  posted.request = requests->front();
  return {};
}

std::optional<Result<Reports>> SessionExchange::received(Channel channel, Duration timeout) {
  const auto place = posted_.find(channel);
  SRT_CHECK(place != posted_.end());
  const Posted& posted = place->second;
  if (timeout <= Duration(0) && !session_.done(posted.request)) {
    return std::nullopt;
  }
  const std::optional<Status> status = session_.wait(posted.request, timeout);
  if (!status) {
    return std::nullopt;
  }
  if (!status->ok()) {
    // An interrupt ends the wait but not the operation; the destructor leaves its memory to the session.
    return Result<Reports>(*status);
  }
  const engine::OpResult* const gathered = session_.result(posted.request);
  auto reports = split(gathered != nullptr ? gathered->data : *posted.bytes, posted.each, posted.summed);
  session_.release(posted.request);
  posted_.erase(place);
  if (static_cast<int>(reports.size()) != size()) {
    return Result<Reports>(
        Status(Code::kMismatch, channel_name(name_, channel) + ": the reports of ranks have different sizes"));
  }
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].empty()) {
      const Rank job_rank = ranks_.empty() ? static_cast<Rank>(rank) : ranks_[rank];
      return Result<Reports>(Status(Code::kMismatch,
                                    channel_name(name_, channel) + ": rank " + std::to_string(job_rank) +
                                        " waits in join(), but with local updates all ranks make the same steps",
                                    {job_rank, {}}));
    }
  }
  return Result<Reports>(std::move(reports));
}

// ---- sums ----

Status SessionExchange::send(int fragment, std::span<float> data, std::int64_t encoding) {
  Fragment& f = of(fragment);
  if (encoding < 0 || static_cast<std::size_t>(encoding) >= f.streams.size()) {
    return bug("a fragment is sent in encoding " + std::to_string(encoding) + ", which has no codec");
  }
  // A residual that nobody has taken must not be sent: that of a sum that was given up, or of a drain.
  if (std::exchange(f.has_residual, false)) {
    SRT_TRY(session_.stream(stream_of(f)).drain_residuals({}));
  }
  f.encoding = encoding;
  f.has_residual = encoding > 0;
  const StreamId stream = stream_of(f);
  for (std::size_t i = 0; i < f.tensors.size(); ++i) {
    const auto part =
        data.subspan(static_cast<std::size_t>(f.offsets[i]), static_cast<std::size_t>(f.offsets[i + 1] - f.offsets[i]));
    SRT_TRY(session_.stream(stream).ready(f.tensors[i], view_of(part), false));
  }
  return session_.stream(stream).finish();
}

std::optional<Status> SessionExchange::sum(int fragment, Duration timeout) {
  const Fragment& f = of(fragment);
  const TimePoint begin = now();
  // StreamHandle::wait() ends the step and may be called only once, so it is no poll.
  const std::optional<Status> reduced = session_.stream(stream_of(f)).wait_tensors(f.tensors, timeout);
  if (!reduced) {
    return std::nullopt;
  }
  // The step ends a little later, or with the same error.
  const Duration left = std::max(timeout - (now() - begin), Duration(std::chrono::seconds(1)));
  return session_.stream(stream_of(f)).wait(left);
}

void SessionExchange::abandon(int fragment) {
  const StreamId stream = stream_of(of(fragment));
  static_cast<void>(session_.stream(stream).abort("local updates ended on this rank"));
}

Duration SessionExchange::transfer_time(int fragment) const {
  const Fragment& f = fragments_[static_cast<std::size_t>(fragment)];
  const auto lasted = session_.stream(stream_of(f)).lasted();
  return lasted ? *lasted : Duration(0);
}

Status SessionExchange::take_residual(int fragment, std::span<float> out) {
  Fragment& f = of(fragment);
  SRT_CHECK(f.encoding > 0);
  f.has_residual = false;
  return session_.stream(stream_of(f)).drain_residuals(out);
}

void SessionExchange::mark(const std::string& name, TimePoint begin, TimePoint end) {
  session_.timeline_mark(name, begin.time_since_epoch().count(), end.time_since_epoch().count());
}

Status SessionExchange::broadcast(Rank root, Bytes data, Duration timeout) {
  // A copy, because the operation continues after an interrupted wait, and the memory of the caller may be gone then.
  const auto copy = std::make_shared<std::vector<std::byte>>(data.begin(), data.end());
  engine::OpSpec op;
  op.kind = OpKind::kBroadcast;
  op.name = name_ + ".repair";
  op.ranks = ranks_;
  op.input = {copy->data(), static_cast<std::int64_t>(copy->size()), DType::kU8, {}};
  op.output = op.input;
  op.dims = {op.input.numel};
  op.root = ranks_.empty() ? root : ranks_[static_cast<std::size_t>(root)];
  std::vector<engine::OpSpec> ops;
  ops.push_back(std::move(op));
  SRT_ASSIGN(const auto requests, session_.submit(std::move(ops)));
  const std::optional<Status> status = session_.wait(requests.front(), timeout);
  if (status && status->ok()) {
    std::ranges::copy(*copy, data.begin());
  }
  session_.forget(requests.front(), copy);
  return status.value_or(Status(Code::kTimeout, name_ + ": a rank did not take part in a repair within the timeout"));
}

}  // namespace sirtaki::local_updates
