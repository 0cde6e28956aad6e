// Ctrl-C as a wish: the first one is remembered, to be looked at where stopping is safe; the second ends the process.
#pragma once

namespace trunkline {

class InterruptWatch {
 public:
  InterruptWatch();   // from here on, SIGINT is a wish
  ~InterruptWatch();  // SIGINT ends the process again
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  bool wished() const;
};

}  // namespace trunkline
