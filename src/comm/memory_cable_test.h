// Cables between ranks that are threads of one process: what a sender posts lands in the oldest receive of the other
// end, or nowhere. Losses are seeded; a cable can be cut and mended.
#pragma once

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/random.h"
#include "link/message_link.h"

namespace trunkline::testing {

class MemoryCable {
 public:
  struct Faults {
    double loss = 0;
    double damage = 0;
    uint64_t seed = 0;
  };

  MemoryCable(std::string name, const Faults& faults) : name_(std::move(name)), faults_(faults), random_(faults.seed) {}

  void cut(bool now) {
    const std::lock_guard lock(mutex_);
    cut_ = now;
  }

  // One lane's link over a cable. Each end holds the cable; what is sent to an end that is gone is lost.
  class End final : public MessageLink {
   public:
    End(std::shared_ptr<MemoryCable> cable, size_t lane, size_t side)
        : cable_(std::move(cable)), lane_(lane), side_(side) {
      const std::lock_guard lock(cable_->mutex_);
      cable_->ends_[{lane_, side_}] = this;
    }
    ~End() override {
      const std::lock_guard lock(cable_->mutex_);
      cable_->ends_.erase({lane_, side_});
    }

    const std::string& name() const override { return cable_->name_; }

    bool post_send(const std::byte* message, uint32_t bytes, uint64_t id) override {
      const std::lock_guard lock(cable_->mutex_);
      done_.push_back({MessageCompletion::Kind::sent, true, bytes, id});
      const auto other = cable_->ends_.find({lane_, 1 - side_});
      const bool lost = cable_->random_.uniform() < cable_->faults_.loss || cable_->cut_;
      if (lost || other == cable_->ends_.end() || other->second->receives_.empty()) return true;
      auto& receives = other->second->receives_;
      const Receive receive = receives.front();
      receives.pop_front();
      std::memcpy(receive.slot, message, bytes);
      if (cable_->random_.uniform() < cable_->faults_.damage) receive.slot[bytes / 2] ^= std::byte{4};
      other->second->done_.push_back({MessageCompletion::Kind::received, true, bytes, receive.id});
      return true;
    }
    void post_receive(std::byte* slot, uint32_t, uint64_t id) override {
      const std::lock_guard lock(cable_->mutex_);
      receives_.push_back({slot, id});
    }
    size_t poll(std::span<MessageCompletion> completions) override {
      const std::lock_guard lock(cable_->mutex_);
      size_t count = 0;
      for (; count < completions.size() && !done_.empty(); ++count) {
        completions[count] = done_.front();
        done_.pop_front();
      }
      return count;
    }

   private:
    struct Receive {
      std::byte* slot;
      uint64_t id;
    };
    const std::shared_ptr<MemoryCable> cable_;
    const size_t lane_, side_;
    std::deque<Receive> receives_;
    std::deque<MessageCompletion> done_;
  };

 private:
  const std::string name_;
  const Faults faults_;
  std::mutex mutex_;
  Random random_;
  bool cut_ = false;
  std::map<std::pair<size_t, size_t>, End*> ends_;  // by lane and side
};

}  // namespace trunkline::testing
