#include "runtime/base/config/job_env.h"

#include <gtest/gtest.h>

namespace sirtaki {
namespace {

JobEnv detected(const Environment& environment) {
  const auto job = detect_job(environment);
  EXPECT_TRUE(job) << job.status().to_string();
  return job ? *job : JobEnv();
}

std::string error_of(const Environment& environment) {
  const auto job = detect_job(environment);
  EXPECT_FALSE(job);
  EXPECT_EQ(job.status().code(), Code::kInvalidArgument);
  return std::string(job.status().text());
}

TEST(JobEnv, NoLauncherIsOneRank) {
  const JobEnv job = detected({{"PATH", "/bin"}, {"MASTER_ADDR", "x"}});
  EXPECT_EQ(job.launcher, "none");
  EXPECT_EQ(job.rank, 0);
  EXPECT_EQ(job.size, 1);
}

TEST(JobEnv, OwnLauncherWinsOverAllOthers) {
  const JobEnv job =
      detected({{"SIRTAKI_JOB_RANK", "1"}, {"SIRTAKI_JOB_SIZE", "2"}, {"RANK", "5"}, {"WORLD_SIZE", "8"}});
  EXPECT_EQ(job.launcher, "sirtakirun");
  EXPECT_EQ(job.rank, 1);
  EXPECT_EQ(job.size, 2);
}

TEST(JobEnv, TorchrunGivesEverything) {
  const JobEnv job = detected({{"RANK", "5"},
                               {"WORLD_SIZE", "8"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "4"},
                               {"MASTER_ADDR", "node0"},
                               {"MASTER_PORT", "29500"},
                               {"TORCHELASTIC_RUN_ID", "job7"}});
  EXPECT_EQ(job.launcher, "torchrun");
  EXPECT_EQ(job.rank, 5);
  EXPECT_EQ(job.size, 8);
  EXPECT_EQ(job.local_rank, 1);
  EXPECT_EQ(job.local_size, 4);
  EXPECT_EQ(job.host, "node0");
  EXPECT_EQ(job.port, 29500);
  EXPECT_EQ(job.job_id, "job7");
}

TEST(JobEnv, OpenMpi) {
  const JobEnv job = detected({{"OMPI_COMM_WORLD_RANK", "2"},
                               {"OMPI_COMM_WORLD_SIZE", "3"},
                               {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
  EXPECT_EQ(job.launcher, "mpirun (Open MPI)");
  EXPECT_EQ(job.rank, 2);
  EXPECT_EQ(job.size, 3);
  EXPECT_EQ(job.local_size, 1);
  EXPECT_EQ(job.host, "");
  EXPECT_EQ(job.port, 0);
}

TEST(JobEnv, PmiOfMpichAndIntel) {
  const JobEnv job =
      detected({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  EXPECT_EQ(job.launcher, "mpiexec (PMI)");
  EXPECT_EQ(job.rank, 1);
  EXPECT_EQ(job.local_rank, 1);
}

TEST(JobEnv, SlurmMeetsOnTheFirstNodeOfTheStep) {
  Environment environment = {{"SLURM_PROCID", "3"},
                             {"SLURM_NTASKS", "4"},
                             {"SLURM_LOCALID", "1"},
                             {"SLURM_JOB_ID", "77"},
                             {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.9"}};
  EXPECT_EQ(detected(environment).launcher, "srun");
  EXPECT_EQ(detected(environment).host, "10.0.0.9");
  EXPECT_EQ(detected(environment).local_rank, 1);
  EXPECT_EQ(detected(environment).job_id, "77");
  environment["SLURM_NODELIST"] = "n[08-11]";
  EXPECT_EQ(detected(environment).host, "n08");
  environment["SLURM_STEP_NODELIST"] = "n[10-11]";
  EXPECT_EQ(detected(environment).host, "n10");
  environment["MASTER_ADDR"] = "head";
  environment["MASTER_PORT"] = "1234";
  EXPECT_EQ(detected(environment).host, "head");
  EXPECT_EQ(detected(environment).port, 1234);
}

TEST(JobEnv, SlurmStepOfOneNodeIsOnOneHost) {
  Environment environment = {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "77"}};
  EXPECT_FALSE(detected(environment).local_size.has_value());
  environment["SLURM_NNODES"] = "2";
  EXPECT_FALSE(detected(environment).local_size.has_value());
  environment["SLURM_STEP_NUM_NODES"] = "1";
  EXPECT_EQ(detected(environment).local_size, 4);
}

TEST(JobEnv, SlurmStepsOfOneJobAreDifferentJobs) {
  EXPECT_EQ(
      detected({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "3"}}).job_id,
      "7.3");
}

TEST(JobEnv, PmiUnderSlurmMeetsOnTheFirstNodeToo) {
  const JobEnv job = detected({{"PMI_RANK", "1"},
                               {"PMI_SIZE", "2"},
                               {"SLURM_PROCID", "1"},
                               {"SLURM_NTASKS", "2"},
                               {"SLURM_STEP_NODELIST", "a,b"}});
  EXPECT_EQ(job.launcher, "mpiexec (PMI)");
  EXPECT_EQ(job.host, "a");
}

TEST(JobEnv, ShellInsideASlurmAllocationRunsAlone) {
  EXPECT_EQ(detected({{"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "7"}}).size, 1);
  EXPECT_EQ(detected({{"SLURM_PROCID", "0"}}).launcher, "none");
}

TEST(JobEnv, HalfASetIsAnErrorThatNamesBoth) {
  EXPECT_EQ(error_of({{"RANK", "1"}}),
            "the environment has RANK but not WORLD_SIZE; torchrun sets both. Set WORLD_SIZE too, or unset RANK to run "
            "alone");
  EXPECT_NE(error_of({{"WORLD_SIZE", "2"}}).find("has WORLD_SIZE but not RANK"), std::string::npos);
  EXPECT_NE(error_of({{"OMPI_COMM_WORLD_RANK", "1"}}).find("OMPI_COMM_WORLD_SIZE"), std::string::npos);
  EXPECT_NE(error_of({{"PMI_SIZE", "1"}}).find("PMI_RANK"), std::string::npos);
  EXPECT_NE(error_of({{"SIRTAKI_JOB_RANK", "0"}}).find("SIRTAKI_JOB_SIZE"), std::string::npos);
}

TEST(JobEnv, ImpossibleNumbersAreErrors) {
  EXPECT_NE(error_of({{"RANK", "4"}, {"WORLD_SIZE", "4"}}).find("RANK is 4 and WORLD_SIZE is 4"), std::string::npos);
  EXPECT_NE(error_of({{"RANK", "-1"}, {"WORLD_SIZE", "4"}}).find("RANK is \"-1\""), std::string::npos);
  EXPECT_NE(error_of({{"RANK", "x"}, {"WORLD_SIZE", "4"}}).find("RANK is \"x\""), std::string::npos);
  EXPECT_NE(error_of({{"RANK", "0"}, {"WORLD_SIZE", "0"}}).find("WORLD_SIZE is \"0\""), std::string::npos);
  EXPECT_NE(error_of({{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}}).find("WORLD_SIZE"), std::string::npos);
  EXPECT_NE(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}}).find("MASTER_PORT"),
            std::string::npos);
  EXPECT_NE(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}})
                .find("LOCAL_RANK is 2 and LOCAL_WORLD_SIZE is 2"),
            std::string::npos);
}

TEST(JobEnv, SlurmListsAreExpanded) {
  EXPECT_EQ(first_slurm_host("login"), "login");
  EXPECT_EQ(first_slurm_host("login,node3"), "login");
  EXPECT_EQ(first_slurm_host("node[03-07,9],login"), "node03");
  EXPECT_EQ(first_slurm_host("node[9,03-07]"), "node9");
  EXPECT_EQ(first_slurm_host("node[1-2].example.org,x"), "node1.example.org");
  EXPECT_EQ(first_slurm_host("rack[1-2]n[05-06]"), "rack1n05");
  EXPECT_EQ(first_slurm_host(""), "");
  EXPECT_EQ(first_slurm_host("node["), "");
  EXPECT_EQ(first_slurm_host("node[]"), "");
  EXPECT_EQ(first_slurm_host("node[a-b]"), "");
}

}  // namespace
}  // namespace sirtaki
