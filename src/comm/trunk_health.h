// TrunkHealth: what a person is told of one trunk. A cable is blamed only while its peer is heard: from a rank that is
// stopped nothing comes over any cable, and then it is the rank that is named.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "link/frame_link.h"

namespace trunkline {

class TrunkHealth {
 public:
  enum class News { cable_lost, cable_works, rank_silent, rank_heard };

  // `patience`: a peer that was not heard for that long is not heard, and one that is heard again has that long to
  // answer over all cables.
  TrunkHealth(size_t links, FrameTime patience) : blamed_(links, false), patience_(patience) {}

  // Whenever something may have changed. `heard`: when the peer's last word came; suspended(link): whether a link
  // brings nothing across. Calls tell(news, link) for what is new; of a rank, the link means nothing.
  template <typename Suspended, typename Tell>
  void look(FrameTime now, FrameTime heard, Suspended suspended, Tell tell) {
    if (now - heard >= patience_) {
      heard_since_.reset();
    } else if (!heard_since_) {
      heard_since_ = now;
    }
    const bool may_blame = heard_since_ && now - *heard_since_ >= patience_;
    bool all = true;
    for (size_t link = 0; link < blamed_.size(); ++link) {
      const bool lost = suspended(link);
      all = all && lost;
      if (lost == blamed_[link] || (lost && !may_blame)) continue;
      blamed_[link] = lost;
      tell(lost ? News::cable_lost : News::cable_works, link);
    }
    const bool silent = all && !heard_since_;
    if (silent == silent_ || (silent_ && !heard_since_)) return;
    silent_ = silent;
    tell(silent ? News::rank_silent : News::rank_heard, size_t{0});
  }

 private:
  std::vector<bool> blamed_;
  const FrameTime patience_;
  std::optional<FrameTime> heard_since_;
  bool silent_ = false;
};

}  // namespace trunkline
