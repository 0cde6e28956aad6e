// Ctrl-C (SIGINT) and SIGTERM as a wish: the first one is remembered, to be looked at where stopping is safe; a Ctrl-C
// after it ends the process. A SIGTERM after a SIGTERM changes nothing: those who send it to all processes of a job
// send it to a launcher too, which passes it on.
#pragma once

namespace trunkline {

class InterruptWatch {
 public:
  InterruptWatch();   // from here on, they are a wish
  ~InterruptWatch();  // they end the process again
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  bool wished() const;
};

}  // namespace trunkline
