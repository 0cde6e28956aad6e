// Programs that nobody here wrote, as ranks on emulated cables: Debian's ibverbs-utils and perftest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <thread>

#include "base/file.h"
#include "base/process.h"

namespace trunkline {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

struct Output {
  int code;
  std::string text;  // of all ranks, both streams
};

class FabricTools : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* tool : {"ibv_devices", "ibv_devinfo", "ib_send_bw", "ib_send_lat"}) {
      ASSERT_TRUE(find_program(tool)) << tool
                                      << " is missing. Install it with: apt-get install ibverbs-utils perftest, or "
                                      << "leave these tests out: ctest -LE perftest";
    }
  }

  // Rank 0 is perftest's server and rank 1 its client; `command` may name $PORT, and $PEER, which is empty on rank 0.
  Output run(const std::string& cables, const std::string& command) {
    const auto log =
        std::filesystem::temp_directory_path() / ("trunkline-tools-" + std::to_string(::getpid()) + ".log");
    const std::string script = "PORT=" + std::to_string(free_port()) +
                               "; PEER=; if [ $MLX_RANK = 1 ]; then PEER=127.0.0.1; sleep 0.5; fi; exec " + command;
    ProcessOptions options;
    options.argv = {"sh",   "-c",     "exec timeout 60 \"$@\" > " + log.string() + " 2>&1",
                    "sh",   kProgram, "launch",
                    "-n",   "2",      "--cables",
                    cables, "--",     "sh",
                    "-c",   script};
    Process process = Process::start(options);
    const auto status = process.wait(Deadline::after(70s));
    Output output{status ? status->code : -1, read_file(log)};
    std::filesystem::remove(log);
    return output;
  }

  // The number in column `column` of a rank's line that begins with `bytes`.
  static double figure(const std::string& text, int rank, const std::string& bytes, int column) {
    std::istringstream lines(text);
    const std::regex wanted("\\[" + std::to_string(rank) + "\\] +" + bytes + " .*");
    for (std::string line; std::getline(lines, line);) {
      if (!std::regex_match(line, wanted)) continue;
      std::istringstream words(line);
      std::string word;
      for (int i = 0; i <= column + 1; ++i) words >> word;
      return std::stod(word);
    }
    ADD_FAILURE() << "rank " << rank << " shows no line of " << bytes << " bytes:\n" << text;
    return 0;
  }

 private:
  static int free_port() {
    const Fd fd(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    socklen_t size = sizeof address;
    address.sin_family = AF_INET;
    ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size);
    ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
    return ntohs(address.sin_port);
  }

  const std::string kProgram = TRUNKLINE_BINARY_DIR "/trunkline";
};

TEST_F(FabricTools, DevicesAreListed) {
  const Output output = run("2", "ibv_devices");
  EXPECT_EQ(output.code, 0);
  for (const char* name : {"[0]     rdma_en2", "[0]     rdma_en3", "[1]     rdma_en2"}) {
    EXPECT_THAT(output.text, HasSubstr(name));
  }
}

TEST_F(FabricTools, DevicesAreDescribed) {
  const Output output = run("1", "ibv_devinfo -v");
  EXPECT_EQ(output.code, 0);
  for (const char* line :
       {"rdma_en2", "emulated", "PORT_ACTIVE", "max_qp:\t\t\t\t10", "max_mr:\t\t\t\t100", "::ffff:169.254."}) {
    EXPECT_THAT(output.text, HasSubstr(line));
  }
}

// The cable is slow, so that a receiver that a busy machine keeps waiting still has receives posted (32: a third of a
// second).
TEST_F(FabricTools, BandwidthIsTheCables) {
  for (const char* more : {"", " --use_old_post_send", " -e", " -q 2"}) {
    const Output output = run("1:gbps=0.05", std::string("ib_send_bw -c UC -t 32 -r 32 -n 40 --report_gbits -p $PORT") +
                                                 more + " -d rdma_en2 $PEER");
    EXPECT_EQ(output.code, 0) << output.text;
    const double gbps = figure(output.text, 1, "65536", 3);
    EXPECT_LT(gbps, 0.052) << more;
    EXPECT_GT(gbps, 0.025) << more;
  }
}

TEST_F(FabricTools, BothWaysAtOnce) {
  const Output output =
      run("1:gbps=0.05", "ib_send_bw -c UC -t 32 -r 32 -n 40 -b --report_gbits -p $PORT -d rdma_en2 $PEER");
  EXPECT_EQ(output.code, 0) << output.text;
  EXPECT_GT(figure(output.text, 1, "65536", 3), 0.06) << "the sum of both";
}

TEST_F(FabricTools, LatencyIsTheCables) {
  const Output output = run("1:delay_us=200", "ib_send_lat -c UC -t 32 -r 32 -n 100 -s 64 -p $PORT -d rdma_en2 $PEER");
  EXPECT_EQ(output.code, 0) << output.text;
  EXPECT_GE(figure(output.text, 1, "64", 2), 200) << "the least of all";
}

TEST_F(FabricTools, DefaultDepthsAreRefusedAsOnAMac) {
  const Output output = run("1:gbps=0.05", "ib_send_bw -c UC -n 1000 -p $PORT -d rdma_en2 $PEER");
  EXPECT_NE(output.code, 0);
  EXPECT_THAT(output.text, HasSubstr("Couldn't post recv Qp = 0: counter=63"));
}

TEST_F(FabricTools, ReliableConnectionsAreRefused) {
  const Output output = run("1", "ib_send_bw -c RC -t 32 -r 32 -p $PORT -d rdma_en2 $PEER");
  EXPECT_NE(output.code, 0);
  EXPECT_THAT(output.text, HasSubstr("Couldn't create"));
}

}  // namespace
}  // namespace trunkline
