// Job: runs one job from its plan to its exit code, as a state machine over agents, coordinator, output and signals.
//
// States: starting (agents send hello) -> probing (remote hosts try our addresses) -> running -> stopping -> finished.
// Owned by main(); one thread, the caller of run(). The coordinator and the terminal have threads of their own and
// report back through the loop.
#pragma once

#include <sys/resource.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/agent/agent_link.h"
#include "launcher/agent/output_writer.h"
#include "launcher/cli.h"
#include "launcher/discovery.h"
#include "launcher/hosts/environment.h"
#include "launcher/hosts/fleet.h"
#include "launcher/hosts/hosts.h"
#include "launcher/join/join_port.h"
#include "launcher/output.h"
#include "launcher/process/child_output.h"
#include "launcher/report.h"
#include "launcher/restarts.h"
#include "runtime/base/config/config.h"
#include "runtime/hub/coordinator_server.h"

namespace sirtaki::launcher {

// All decisions that are made before the first process starts.
struct JobPlan {
  RunOptions options;
  std::vector<Placement> placements;  // with --check: one rank on each host, which measures the links
  std::vector<Placement> wanted;      // the user's choice; differs from `placements` with --check only
  std::shared_ptr<const Config> config;
  Variables variables;               // environment of the ranks
  std::vector<std::string> own_env;  // "NAME=VALUE", environment of agents and ssh
  std::string own_path;              // path of this program
  std::string cwd;
  std::optional<rendezvous::Secret> join_secret;  // hosts may join at options.join.port, with this secret
  std::vector<Host> hosts;                        // set with join_secret only: those of the command line
  int size = 0;                                   // ranks at the start; if hosts may come, the fewest
  int places = 0;                                 // most processes later; `size` if the job does not grow
  int spares = 0;                                 // processes beyond the most ranks, which `places` counts
  bool by_host = false;                           // an elastic job loses all ranks of a host with one that fails

  // Returns the most ranks that the job may have at one time.
  int most_ranks() const { return places - spares; }
};

// First argument of a rank of `sirtakirun --check`; the names of all hosts follow (links/measure.h).
inline constexpr const char* kMeasureLinks = "--measure-links";

class Job {
 public:
  explicit Job(JobPlan plan);
  ~Job();

  // Runs the job to its end and returns the exit code of the process. Call it once.
  int run();

 private:
  enum class Phase { kStarting, kProbing, kRunning, kStopping, kFinished };
  struct RankState {
    AgentLink* link = nullptr;  // null: no process has been started here yet
    RankNumbers numbers;
    bool spawned = false;
    bool exited = false;
    bool closed = false;
    bool ended_by_us = false;  // the launcher had asked for its end before it ended
    bool left = false;         // in order, as the coordinator reports it; elastic jobs only
    bool lost = false;         // the other ranks go on without it
    bool asked = false;        // its host is gone or rests: it has got the notice, or is ended
    bool noticed = false;      // it has got the notice, and leaves also if its host has come back meanwhile
    bool parted = false;       // it had to leave, and has done so, or it has waited until the end of the job
    bool fresh = false;        // its process was started later and has not joined yet
    bool came = false;         // ... but waits for that at the coordinator
    bool spare = false;        // ... until a rank is lost, as the user knows
    bool settled = false;      // the end of its process is dealt with: another one will start, or the place is vacant
    bool due = false;          // ... as soon as the other ranks admit it
    bool vacant = false;       // has no host
    bool given_up = false;     // ... and gets none any more
    int starts = 0;
    int started_at = 0;  // Growth::changes at its last start
    int wait_status = 0;
    std::optional<TimePoint> member_since;  // with the state of the job
    // Runs from the plan of a start to the start, from there until the process has come to the coordinator, and from
    // the end of its connection, if it has not joined, or from the notice until it is ended.
    std::shared_ptr<boost::asio::steady_timer> timer;
  };
  // Lines of the ranks between their pipes and the terminal or files.
  struct OutputState {
    explicit OutputState(boost::asio::io_context& io) : flush_timer(io) {}
    std::unique_ptr<OutputWriter> writer;
    std::unique_ptr<OutputMux> mux;
    std::optional<RankFiles> files;
    boost::asio::steady_timer flush_timer;
    bool flush_pending = false;
  };
  // Elastic jobs that grow: lost ranks are started again, and others in vacant places.
  struct Growth {
    Fleet fleet;
    bool answered = false;                                        // the script has named hosts
    bool begun = false;                                           // the first epoch has formed
    std::unique_ptr<Discovery> script;                            // null: no script names the hosts
    std::unique_ptr<JoinPort> port;                               // null: no host may join by itself
    std::map<std::string, int> joined;                            // slots of the hosts that have joined by themselves
    std::map<std::string, std::unique_ptr<ChildOutput>> lookups;  // children that resolve names of hosts
    std::map<std::string, std::string> routes;                    // answers of these
    std::map<std::string, std::string> left_out;  // hosts and why they cannot be used, as the user knows
    std::string script_error;                     // ... of the script that names the hosts, in its last run
    Restarts restarts{0};
    bool admits = false;    // the other ranks take new ones
    std::string last_loss;  // since the present epoch has formed
    int changes = 0;        // losses, departures and joins; ranks that were started together join once
    bool told = false;      // the user knows that lost ranks have to wait for that
    bool over = false;      // a rank has come to the end of the program, or no rank goes on
  };
  // Outcome of the run and the rank that is to blame.
  struct Verdict {
    std::optional<Failure> failure;
    std::optional<Rank> left_first;  // first rank that left in this epoch, as the coordinator reports it
    std::optional<std::pair<Rank, std::string>> lost_first;  // reported by the coordinator before any rank ended badly
    std::optional<int> interrupted;                          // number of the signal that interrupted the run
    std::vector<Failure> survived;  // lost ranks of an elastic job, in the order of their losses
  };

  // job_start.cc
  Status open_output();
  Status start_hub();
  Status check_descriptors() const;
  void start_links();
  AgentLink& add_link(const Placement& placement);
  AgentCommand agent_command(const Placement& placement) const;
  AgentLink::Events link_events();
  void on_link_ready(AgentLink& link);
  void on_link_failed(AgentLink& link, const Status& status);
  void check_started();
  void start_probing();
  std::vector<std::string> candidates(const AgentLink& link) const;
  void send_probe(AgentLink& link);
  void on_probed(AgentLink& link, ConstBytes payload);
  void check_probed();
  void spawn_ranks();
  void send_spawn(AgentLink& link, const std::vector<Rank>& ranks);
  std::string no_answer_text(const AgentLink& link) const;
  void on_start_timeout();
  void give_up_start();
  std::vector<std::string> command() const;
  void finish_check();

  // job.cc
  void on_frame(AgentLink& link, const Frame& frame);
  void on_link_gone(AgentLink& link, const Status& status);
  void on_output(AgentLink& link, ConstBytes payload);
  void on_exited(AgentLink& link, ConstBytes payload);
  void on_closed(AgentLink& link, ConstBytes payload);
  void on_rank_lost(Rank rank, const Status& cause);
  void on_rank_left(Rank rank);
  void on_spawn_failed(AgentLink& link, ConstBytes payload);
  void on_signalled(AgentLink& link, ConstBytes payload);
  void return_credit();
  void protocol_error(AgentLink& link, const Status& status);
  RankState* rank_state(const AgentLink& link, Rank rank);

  // job_stop.cc
  void wait_for_signal();
  void on_signal(int number);
  void reap_children();
  void begin_stop();
  void fail_run(Failure failure);
  void interrupt(int number);
  void kill_everything(int signal_number);
  void pass_on(int number);
  void suspend();
  void stop_here();
  void check_finished();
  void finish();
  void check_links_ended();
  void conclude();
  void assign_blame();
  void ping_links();
  void flush_later();

  // job_elastic.cc
  bool elastic() const { return plan_.config->elastic.min > 0 && !plan_.options.check; }
  void on_survived(const hub::Survived& loss);
  void on_epoch();
  void count_change(const std::string& why);
  void on_over(const Status& why);
  void end_process(Rank rank);
  void end_lost_ranks();
  void judge_elastic_run();
  Failure failure_of(Rank rank) const;

  // job_restart.cc
  bool grows() const { return elastic() && plan_.config->elastic.max > 0; }
  void on_new_rank(const hub::NewRank& rank);
  void on_joined(const hub::NewRank& rank);
  void end_fresh(Rank rank, const std::string& why);
  void on_admits(bool admits);
  void on_fresh_exit(Rank rank, const std::string& what);
  void plan_restart(Rank rank);
  void cancel_restart(Rank rank);
  void set_timer(Rank rank, Duration pause, std::function<void()> then);
  void leave_empty(Rank rank, const std::string& why);
  void start_due_ranks();
  void start_again(Rank rank);
  void await_init(Rank rank);
  bool is_full() const;
  void tell_spares();
  void await_candidates();

  // job_hosts.cc
  void seat(Rank rank, AgentLink& link);
  void seat_ranks();
  void update_places();
  void take_place(Rank rank, AgentLink& link);
  void vacate(Rank rank);
  void close_slot(Rank rank);
  void release(Rank rank);
  void give_up_vacant();
  void fail_host(Rank rank);
  std::vector<Fleet::Seat> seats() const;
  std::vector<Rank> ranks_of(const AgentLink& link) const;
  AgentLink* link_of(const std::string& host) const;
  bool is_newest(const AgentLink& link) const { return link_of(link.placement().host) == &link; }
  Duration used(const std::string& host) const;
  void forget_hosts();
  std::string machine_of(const AgentLink& link) const;

  // job_discovery.cc
  // Returns whether hosts may come and go while the job runs.
  bool discovers() const { return !plan_.options.discovery.script.empty() || plan_.join_secret; }
  void discover();
  void await_hosts();
  void await_answer(AgentLink& link);
  void on_hosts(const std::vector<Host>& hosts);
  void on_discovery_failed(const Status& status);
  void call_absent_hosts();
  void look_up(const Host& host);
  void call(const Placement& placement);
  void on_discovered_ready(AgentLink& link);
  std::string endpoint_here(const AgentLink& link) const;
  std::string endpoint_in_use() const;
  bool is_here(const AgentLink& link) const;
  bool is_on_loopback() const;
  void use_host(AgentLink& link);
  void leave_out(const std::string& host, const Status& why);
  void rest_host(const std::string& host);
  void start_if_enough();
  void ask_to_leave(Rank rank);
  void end_late_leaver(Rank rank);
  void retire_hosts();

  // job_join.cc
  Status open_join_port();
  void offer_hosts();
  void on_joining(JoiningHost& host);
  std::string why_refused(const AgentLink& link) const;
  void greet(AgentLink& link);
  void withdraw(const AgentLink& link);
  void on_leave(AgentLink& link);
  void tell_end();

  void log(const std::string& text);
  void log_verbose(const std::string& text);

  JobPlan plan_;
  boost::asio::io_context io_;
  boost::asio::signal_set signals_;
  boost::asio::steady_timer phase_timer_;      // the only deadline of the present phase
  boost::asio::steady_timer lost_timer_{io_};  // runs from the loss of a rank to the end of the run
  boost::asio::steady_timer ping_timer_;
  boost::asio::steady_timer suspend_timer_{io_};
  OutputState output_;
  std::unique_ptr<hub::CoordinatorServer> coordinator_;
  rendezvous::Secret secret_;
  AgentLinks links_;
  std::vector<RankState> ranks_;
  Phase phase_ = Phase::kStarting;
  Verdict verdict_;
  Growth growth_;
  bool kill_sent_ = false;
  std::set<const AgentLink*> stopping_;  // hosts that have yet to stop their ranks before this process stops
  bool links_finishing_ = false;
  int exit_code_ = 0;
  rlim_t open_files_ = 0;  // limit with which this process was started
  TimePoint started_;
  std::set<pid_t> spared_;  // children this process had before it became sirtakirun (exec in a script)
};

}  // namespace sirtaki::launcher
