#include "runtime/local_updates/reports.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "runtime/base/wire.h"

namespace sirtaki::local_updates {
namespace {

// Decodes the reports of all ranks.
template <class Value, class Read>
Result<std::vector<Value>> decode(const Reports& reports, const char* what, const Read& read) {
  std::vector<Value> values;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    WireReader in(reports[rank]);
    values.push_back(read(in));
    const Status good = in.finish(what);
    if (!good.ok()) {
      return Status(good.code(), "rank " + std::to_string(rank) + ": " + std::string(good.text()),
                    {static_cast<Rank>(rank), {}});
    }
  }
  return values;
}

bool get_flag(WireReader& in) {
  const auto value = in.get<std::uint8_t>();
  if (value > 1) {
    in.fail();
  }
  return value == 1;
}

RankRound get_round(WireReader& in) {
  RankRound round;
  for (std::int64_t* field : {&round.step, &round.steps_left, &round.step_us, &round.transfer_us, &round.dense_us,
                              &round.longest_us, &round.latency_us, &round.stall_us, &round.late_tags, &round.now_us}) {
    *field = in.get<std::int64_t>();
  }
  round.lr = in.get<double>();
  round.encoding = in.get<std::uint8_t>();
  round.loss_known = get_flag(in);
  round.loss_before = in.get<double>();
  round.loss_after = in.get<double>();
  const bool compared = get_flag(in);
  const auto digest = in.get<std::uint64_t>();
  if (compared) {
    round.digest = digest;
  }
  return round;
}

}  // namespace

std::int64_t micros(Duration time) {
  return std::max<std::int64_t>(std::chrono::duration_cast<std::chrono::microseconds>(time).count(), 0);
}

std::vector<std::byte> encode(const RankReport& report) {
  WireWriter out;
  out.put(report.norm2);
  out.put(report.lr_sum);
  out.put(report.share);
  return std::move(out).take();
}

Result<std::vector<RankReport>> decode_snapshots(const Reports& reports) {
  return decode<RankReport>(reports, "a report of a snapshot", [](WireReader& in) {
    RankReport report;
    report.norm2 = in.get<double>();
    report.lr_sum = in.get<double>();
    report.share = in.get<std::int64_t>();
    return report;
  });
}

std::vector<std::byte> encode(const Vote& vote) {
  WireWriter out;
  out.put(vote.good);
  out.put(vote.transfer_us);
  out.put(vote.mean_norm2);
  return std::move(out).take();
}

Result<std::vector<Vote>> decode_votes(const Reports& reports) {
  return decode<Vote>(reports, "a vote on a merge", [](WireReader& in) {
    Vote vote;
    vote.good = get_flag(in);
    vote.transfer_us = in.get<std::int64_t>();
    vote.mean_norm2 = in.get<double>();
    return vote;
  });
}

std::vector<std::byte> encode(const RoundReport& report) {
  const RankRound& round = report.round;
  WireWriter out;
  for (const std::int64_t field : {round.step, round.steps_left, round.step_us, round.transfer_us, round.dense_us,
                                   round.longest_us, round.latency_us, round.stall_us, round.late_tags, round.now_us}) {
    out.put(field);
  }
  out.put(round.lr);
  out.put(static_cast<std::uint8_t>(round.encoding));
  out.put(round.loss_known);
  out.put(round.loss_before);
  out.put(round.loss_after);
  out.put(round.digest.has_value());
  out.put(round.digest.value_or(0));
  out.put(report.decisions);
  return std::move(out).take();
}

Result<std::vector<RankRound>> decode_rounds(const Reports& reports) {
  std::vector<std::uint64_t> decisions;
  SRT_ASSIGN(auto rounds, decode<RankRound>(reports, "a report of a round", [&decisions](WireReader& in) {
               RankRound round = get_round(in);
               decisions.push_back(in.get<std::uint64_t>());
               return round;
             }));
  for (std::size_t rank = 1; rank < decisions.size(); ++rank) {
    if (decisions[rank] != decisions[0]) {
      return Status(
          Code::kMismatch,
          "rank " + std::to_string(rank) +
              " decided differently from rank 0 in an earlier round. Likely cause: the function of the program "
              "for intervals, or its calls of drain() and synchronous(), differ between ranks",
          {static_cast<Rank>(rank), {}});
    }
  }
  return rounds;
}

std::vector<std::byte> encode_digests(const std::vector<std::uint64_t>& digests) {
  WireWriter out;
  for (const std::uint64_t digest : digests) {
    out.put(digest);
  }
  return std::move(out).take();
}

Result<std::vector<std::vector<std::uint64_t>>> decode_digests(const Reports& reports, std::size_t count) {
  return decode<std::vector<std::uint64_t>>(reports, "digests", [count](WireReader& in) {
    std::vector<std::uint64_t> digests;
    for (std::size_t i = 0; i < count; ++i) {
      digests.push_back(in.get<std::uint64_t>());
    }
    return digests;
  });
}

}  // namespace sirtaki::local_updates
