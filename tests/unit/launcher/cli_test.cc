#include "launcher/cli.h"

#include <gtest/gtest.h>

namespace sirtaki::launcher {
namespace {

using Words = std::vector<std::string>;

RunOptions parsed(const Words& words) {
  auto line = parse_command_line(words);
  EXPECT_TRUE(line) << line.status().to_string();
  return line ? line->run : RunOptions{};
}

std::string refused(const Words& words) {
  const auto line = parse_command_line(words);
  EXPECT_FALSE(line);
  return std::string(line.status().text());
}

TEST(CommandLine, TakesNpInItsOldSpelling) {
  EXPECT_EQ(parsed({"-np", "4", "python"}).np, 4);
  EXPECT_EQ(parsed({"-np=4", "python"}).np, 4);
  EXPECT_EQ(parsed({"-n", "4", "python"}).np, 4);
  EXPECT_EQ(parsed({"-H", "a:2", "-np", "2", "python"}).np, 2);
  EXPECT_EQ(parsed({"-H", "a:2", "python"}).np, std::nullopt);
}

TEST(CommandLine, LeavesTheUsersCommandAlone) {
  const RunOptions run = parsed({"-np", "2", "mpirun", "-np", "3", "--verbose", "-H", "x", "--check"});
  EXPECT_EQ(run.command, (Words{"mpirun", "-np", "3", "--verbose", "-H", "x", "--check"}));
  EXPECT_FALSE(run.verbose);
  EXPECT_FALSE(parsed({"-np", "2", "python", "--horovod"}).horovod);
  EXPECT_TRUE(parsed({"-np", "2", "--horovod", "python"}).horovod);
  EXPECT_FALSE(run.check);
  EXPECT_EQ(parsed({"-np", "2", "--", "-odd", "--np"}).command, (Words{"-odd", "--np"}));
  EXPECT_EQ(parsed({"-np", "2", "a", "--", "b"}).command, (Words{"a", "--", "b"}));
}

TEST(CommandLine, TakesValuesThatBeginWithADash) {
  const RunOptions run = parsed({"-np", "1", "--ssh-options", "-o Port=3 -i 'a b'", "cmd"});
  EXPECT_EQ(run.ssh.extra, (Words{"-o", "Port=3", "-i", "a b"}));
  EXPECT_EQ(run.command, (Words{"cmd"}));
}

TEST(CommandLine, CollectsRepeatedVariables) {
  EXPECT_EQ(parsed({"-np", "1", "-x", "A=1", "-x", "B", "cmd", "-x"}).env, (Words{"A=1", "B"}));
}

TEST(CommandLine, HandsOptionsOfTheRuntimeOn) {
  const RunOptions run = parsed({"-np", "1", "--compression", "fp16", "--control-heartbeat-timeout=3s", "cmd"});
  EXPECT_NE(run.option_lines.find("compression.codec = \"fp16\""), std::string::npos) << run.option_lines;
  EXPECT_NE(run.option_lines.find("control.heartbeat_timeout = \"3s\""), std::string::npos) << run.option_lines;
  EXPECT_NE(parsed({"-np", "1", "--port-range", "41000-41100", "cmd"}).option_lines.find("job.port_range"),
            std::string::npos);
}

TEST(CommandLine, ReadsValuesOfHorovodrun) {
  const Words words = {"-np", "1", "--log-level", "DEBUG", "--elastic-timeout", "7", "--start-timeout", "9", "cmd"};
  Words theirs = {"--horovod"};
  theirs.insert(theirs.end(), words.begin(), words.end());
  const RunOptions run = parsed(theirs);
  EXPECT_NE(run.option_lines.find("log.level = \"debug\""), std::string::npos) << run.option_lines;
  EXPECT_NE(run.option_lines.find("elastic.timeout = \"7s\""), std::string::npos) << run.option_lines;
  EXPECT_EQ(run.start_timeout, std::chrono::seconds(9));
  EXPECT_FALSE(parse_command_line(words).ok()) << "times of sirtakirun have a unit";
}

TEST(CommandLine, TakesTheFewestRanksOfAnElasticJob) {
  for (const Words& words : {Words{"--elastic", "2:"}, {"--elastic=2"}, {"--min-np", "2"}, {"--elastic", "2:4"}}) {
    Words all = {"-np", "4", "cmd"};
    all.insert(all.begin() + 2, words.begin(), words.end());
    EXPECT_NE(parsed(all).option_lines.find("elastic.min = \"2\""), std::string::npos) << parsed(all).option_lines;
  }
  EXPECT_EQ(parsed({"-np", "4", "cmd"}).option_lines.find("elastic"), std::string::npos);
  for (const char* text : {"", ":", "0:", "x", "2:x", "-1:", "2::"}) {
    EXPECT_NE(refused({"-np", "4", "--elastic=" + std::string(text), "cmd"}), "") << text;
  }
  for (const Words& words :
       {Words{"--elastic", "2:4"}, {"--min-np", "2", "--max-np=4"}, {"--elastic=2", "--max-np=4"}}) {
    Words all = {"-np", "4", "cmd"};
    all.insert(all.begin() + 2, words.begin(), words.end());
    EXPECT_NE(parsed(all).option_lines.find("elastic.max = \"4\""), std::string::npos) << parsed(all).option_lines;
  }
  EXPECT_NE(refused({"-np", "4", "--max-np=4", "cmd"}).find("needs --min-np"), std::string::npos);
  const std::string conflict = refused({"-np", "4", "--elastic", "2:4", "--max-np", "8", "cmd"});
  EXPECT_EQ(conflict, "--elastic 2:4 and --max-np 8 both name the most ranks; give one of them");
  for (const std::string name : {"--nproc_per_node=2", "--standalone", "--nnodes", "--master-addr", "--master_port",
                                 "--node-rank", "--rdzv-backend", "--rdzv_id"}) {
    EXPECT_NE(refused({name, "2", "cmd"}).find(name + " is an option of torchrun; "), std::string::npos) << name;
  }
}

TEST(CommandLine, TakesTheNumberOfSpares) {
  EXPECT_EQ(parsed({"-np", "4", "--elastic", "2:4", "cmd"}).spares, 0);
  EXPECT_EQ(parsed({"-np", "4", "--elastic", "2:4", "--spares", "2", "cmd"}).spares, 2);
  EXPECT_NE(refused({"-np", "4", "--elastic", "2:4", "--spares", "-1", "cmd"}).find("--spares"), std::string::npos);
  EXPECT_NE(refused({"--join", "a:1", "--spares", "1"}).find("--join: leave out --spares"), std::string::npos);
}

TEST(CommandLine, TakesAScriptThatNamesTheHosts) {
  const RunOptions run = parsed({"--elastic", "2:4", "--host-discovery-script", "./hosts.sh --all", "--slots-per-host",
                                 "4", "--discovery-interval=250ms", "cmd"});
  EXPECT_EQ(run.discovery.script, "./hosts.sh --all");
  EXPECT_EQ(run.discovery.slots, 4);
  EXPECT_EQ(run.discovery.interval, std::chrono::milliseconds(250));
  for (const Words& words : {Words{"-H", "a"}, {"--hostfile", "f"}, {"--check"}}) {
    Words all = {"--host-discovery-script", "x", "cmd"};
    all.insert(all.begin(), words.begin(), words.end());
    EXPECT_NE(refused(all).find("names the hosts"), std::string::npos);
  }
  EXPECT_NE(refused({"--slots-per-host", "0", "--host-discovery-script", "x", "cmd"}), "");
  EXPECT_NE(refused({"--discovery-interval", "0s", "--host-discovery-script", "x", "cmd"}).find("at least 10ms"),
            std::string::npos);
}

TEST(CommandLine, TakesAPortAtWhichHostsJoin) {
  const RunOptions run =
      parsed({"-np", "2", "--elastic", "1:4", "--join-port", "0", "--secret-file", "s", "-H", "a:2", "cmd"});
  EXPECT_EQ(run.join.port, 0);
  EXPECT_EQ(run.join.secret_file, "s");
  for (const Words& words : {Words{"--host-discovery-script", "x"}, {"--check"}, {"--join", "a:1"}}) {
    Words all = {"--join-port", "0", "cmd"};
    all.insert(all.begin(), words.begin(), words.end());
    EXPECT_NE(refused(all).find("--join-port: leave out"), std::string::npos);
  }
  EXPECT_NE(refused({"--join-port", "65536", "cmd"}), "");
  EXPECT_NE(refused({"--secret-file", "s", "cmd"}).find("--secret-file is for"), std::string::npos);
}

TEST(CommandLine, TakesAJobWithoutRanksOnThisHost) {
  const RunOptions run = parsed({"--hub", "--elastic", "1:4", "cmd"});
  EXPECT_TRUE(run.join.hub);
  EXPECT_EQ(run.join.port, 0);
  EXPECT_EQ(parsed({"--hub", "--elastic", "1:4", "--join-port", "41000", "cmd"}).join.port, 41000);
  EXPECT_FALSE(parsed({"--elastic", "1:4", "--join-port", "0", "cmd"}).join.hub);
  for (const Words& words :
       {Words{"-H", "a:2"}, {"--hostfile", "f"}, {"--host-discovery-script", "x"}, {"--check"}, {"--join", "a:1"}}) {
    Words all = {"--hub", "cmd"};
    all.insert(all.begin(), words.begin(), words.end());
    EXPECT_NE(refused(all).find("--hub: leave out "), std::string::npos) << words.front();
  }
}

TEST(CommandLine, TakesAJobThatThisHostJoins) {
  const RunOptions run = parsed({"--join", "a:41000", "-np", "2", "--secret-file", "s", "--start-timeout", "5s"});
  EXPECT_EQ(run.join.address, "a:41000");
  EXPECT_EQ(run.np, 2);
  EXPECT_EQ(run.start_timeout, std::chrono::seconds(5));
  EXPECT_EQ(parsed({"--join", "a:41000", "--elastic-hub-wait", "5s"}).option_lines, "elastic.hub_wait = \"5s\"\n");
  EXPECT_NE(
      refused({"--hub", "--elastic", "1:2", "--elastic-hub-wait", "5s", "cmd"}).find("give it to sirtakirun --join"),
      std::string::npos);
  for (const Words& words : {Words{"-H", "b"},
                             {"--elastic", "1:2"},
                             {"-x", "A=1"},
                             {"--compression", "fp16"},
                             {"--horovod"},
                             {"--output-dir", "d"}}) {
    Words all = {"--join", "a:41000"};
    all.insert(all.end(), words.begin(), words.end());
    EXPECT_NE(refused(all).find("--join: leave out --"), std::string::npos) << words.front();
  }
  EXPECT_NE(refused({"--join", "a:41000", "python", "train.py"}).find("leave out the command"), std::string::npos);
  EXPECT_NE(refused({"--join", "a:41000", "-np", "0"}).find("-np 0"), std::string::npos);
}

TEST(CommandLine, TakesHorovodsRulesForFailingHosts) {
  const RunOptions run = parsed({"--blacklist-cooldown-range", "10", "2min", "--reset-limit", "3", "cmd", "x"});
  for (const char* line :
       {"elastic.cooldown = \"10s\"", "elastic.cooldown_limit = \"2min\"", "elastic.reset_limit = \"3\""}) {
    EXPECT_NE(run.option_lines.find(line), std::string::npos) << run.option_lines;
  }
  EXPECT_EQ(run.command, (Words{"cmd", "x"}));
  const RunOptions joined = parsed({"--blacklist-cooldown-range=10", "120", "cmd", "x"});
  EXPECT_EQ(joined.option_lines, "elastic.cooldown = \"10s\"\nelastic.cooldown_limit = \"120s\"\n");
  EXPECT_EQ(joined.command, (Words{"cmd", "x"}));
  EXPECT_EQ(parsed({"-x", "A=1", "cmd", "x"}).command, (Words{"cmd", "x"})) << "one value only";
  for (const auto& [shortest, longest] : {std::pair{"0", "5"}, {"10", "5"}, {"1s", "much"}}) {
    EXPECT_NE(refused({"--blacklist-cooldown-range", shortest, longest, "cmd"}).find("60 300"), std::string::npos);
  }
}

TEST(CommandLine, TakesHorovodsNamesForTheNumberOfRanks) {
  const RunOptions run = parsed({"--num-proc", "3", "--min-num-proc", "2", "--max-num-proc", "4", "cmd"});
  EXPECT_EQ(run.np, 3);
  EXPECT_EQ(run.option_lines, "elastic.min = \"2\"\nelastic.max = \"4\"\n");
  const RunOptions named = parsed({"-np", "3", "--max-np", "4", "--host-discovery-script", "x", "cmd"});
  EXPECT_EQ(named.option_lines, "elastic.min = \"3\"\nelastic.max = \"4\"\n");
}

TEST(CommandLine, NamesTheNearestOption) {
  EXPECT_NE(refused({"-np", "1", "--compresion", "fp16", "cmd"}).find("did you mean --compression"), std::string::npos);
  EXPECT_NE(refused({"-np", "1", "--output-dirs=x", "cmd"}).find("did you mean --output-dir"), std::string::npos);
}

TEST(CommandLine, RefusesWhatItCannotUse) {
  refused({});
  refused({"-np", "2"});
  refused({"-np", "two", "cmd"});
  refused({"-np"});
  refused({"-np", "1", "--ssh-port", "70000", "cmd"});
  refused({"-np", "1", "-H", "a", "--hostfile", "b", "cmd"});
  refused({"-np", "1", "--start-timeout", "soon", "cmd"});
  refused({"-np", "1", "--term-grace", "-1s", "cmd"});
  refused({"-np", "1", "--term-grace", "9999h", "cmd"});
  refused({"-np", "1", "--ssh-options", "'open", "cmd"});
}

TEST(CommandLine, DoesNotOfferWhatTheLauncherSaysItself) {
  refused({"-np", "1", "--job-rank", "3", "cmd"});
  refused({"-np", "1", "--job-secret-fd", "3", "cmd"});
}

TEST(CommandLine, HelpTeaches) {
  const auto line = parse_command_line({"--help"});
  ASSERT_TRUE(line);
  ASSERT_TRUE(line->print);
  for (const char* part : {"-np N", "Examples:", "--hostfile", "--compression", "--check", "Output:"}) {
    EXPECT_NE(line->print->find(part), std::string::npos) << part;
  }
}

TEST(CommandLine, KeepsTheFailureGraceInsideTheFiveSeconds) {
  EXPECT_EQ(parsed({"-np", "1", "--failure-grace", "1h", "cmd"}).failure_grace, std::chrono::seconds(3));
  EXPECT_EQ(parsed({"-np", "1", "--failure-grace", "0s", "cmd"}).failure_grace, Duration::zero());
}

}  // namespace
}  // namespace sirtaki::launcher
