#include "base/interrupt.h"

#include <csignal>

namespace trunkline {
namespace {

volatile std::sig_atomic_t wish = 0;

extern "C" void on_interrupt(int number) {
  wish = 1;
  std::signal(SIGINT, SIG_DFL);
  if (number == SIGINT) std::signal(SIGTERM, SIG_DFL);
}

}  // namespace

InterruptWatch::InterruptWatch() {
  wish = 0;
  std::signal(SIGINT, on_interrupt);
  std::signal(SIGTERM, on_interrupt);
}

InterruptWatch::~InterruptWatch() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool InterruptWatch::wished() const { return wish != 0; }

}  // namespace trunkline
