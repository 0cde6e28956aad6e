// A host that vanishes without closing anything: a network namespace whose link goes down stands for it. Only Linux has
// them, and only root may make one.
#ifdef __linux__
#include <gmock/gmock.h>
#include <net/if.h>
#include <sched.h>

#include <cstdlib>

#include "base/clock.h"
#include "base/fail.h"
#include "comm/ranks_test.h"

namespace trunkline {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::RankProcess;

bool run(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

// A cable of the system between this namespace and another one.
class Veth {
 public:
  Veth()
      : near_(fmt::format("tl{}a", ::getpid())),
        far_(fmt::format("tl{}b", ::getpid())),
        network_(fmt::format("10.213.{}.", ::getpid() % 250)) {
    made_ = run(fmt::format("ip link add {} type veth peer name {}", near_, far_)) &&
            run(fmt::format("ip addr add {}/24 dev {}", near_address(), near_)) &&
            run(fmt::format("ip link set {} up", near_));
  }
  ~Veth() { run("ip link del " + near_); }

  bool made() const { return made_; }
  std::string near_address() const { return network_ + "1"; }

  bool give_to(pid_t process) const { return run(fmt::format("ip link set {} netns {}", far_, process)); }
  void cut() const { ASSERT_TRUE(run(fmt::format("ip link set {} down", near_))); }

  // In the other namespace: waits for the far end and brings it up.
  void bring_up_far_end() const {
    for (const Deadline deadline = Deadline::after(10s); ::if_nametoindex(far_.c_str()) == 0;) {
      if (deadline.expired()) fail(ErrorKind::timeout, "{} has not come", far_);
      std::this_thread::sleep_for(5ms);
    }
    if (!run(fmt::format("ip addr add {}2/24 dev {}", network_, far_)) ||
        !run(fmt::format("ip link set {} up", far_))) {
      fail(ErrorKind::system, "{} cannot be brought up", far_);
    }
  }

 private:
  const std::string near_, far_, network_;
  bool made_ = false;
};

void sum_forever(const Config& config, const RankProcess::Ready& ready) {
  const auto group = Group::connect(config);
  std::vector<float> data(10'000, 1);
  for (int i = 0;; ++i) {
    group->all_sum(data.data(), data.data(), data.size(), Dtype::f32);
    if (i == 20) ready();
  }
}

TEST(VanishedHost, IsNamedWithinSeconds) {
  const Veth veth;
  if (!veth.made()) GTEST_SKIP() << "no permission to make a network interface here";
  const Fd listener = listen_on(Address::resolve(veth.near_address() + ":0").front());
  Config config;
  config.size = 2;
  config.coordinator = Address::local_of(listener.get()).text();
  config.job_key = testing::kKey;
  config.timeout = 20s;

  RankProcess far([&](const RankProcess::Ready& ready) {
    if (::unshare(CLONE_NEWNET) != 0) fail_errno("unshare");
    ready();
    veth.bring_up_far_end();
    config.rank = 1;
    sum_forever(config, [] {});
  });
  try {
    far.await_ready();
  } catch (const Error& error) {
    GTEST_SKIP() << "no permission to make a network namespace here: " << error.what();
  }
  ASSERT_TRUE(veth.give_to(far.pid()));
  RankProcess near([&](const RankProcess::Ready& ready) {
    config.listen_fd = ::dup(listener.get());
    sum_forever(config, ready);
  });
  near.await_ready();

  veth.cut();
  const auto start = Clock::now();
  const auto end = near.wait();
  EXPECT_LT(seconds_since(start), 5);
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.error, AllOf(HasSubstr("rank 1 ("), HasSubstr("its last operation was all_sum of 10000 float32")));
}

}  // namespace
}  // namespace trunkline
#endif
