#include "comm/job.h"

namespace trunkline {

Job::Job(const Config& config, Paths paths, Connections connections)
    : algorithm_(config.algorithm),
      trunking_from_(trunking_from(config)),
      paths_(std::move(paths)),
      watch_(static_cast<size_t>(config.rank), std::move(connections.members), std::move(connections.control),
             config.timeout),
      lanes_(make_channels(config, std::move(connections), watch_), watch_, config.workers),
      calls_([this](const std::exception& error) { watch_.fail_job(error); }) {}

Job::~Job() {
  calls_.finish();
  if (!watch_.failed()) lanes_.drain();
  watch_.leave();
}

void Job::run(const Operation& operation, const Team& team, size_t bytes,
              const std::function<void(Channel&, const Share&)>& f) {
  watch_.begin(operation, team);
  const size_t count = lanes_for(bytes, lanes_.size(), trunking_from_);
  lanes_.run(count, [&](Channel& channel, size_t lane) { f(channel, {lane, count}); });
  watch_.end();
}

}  // namespace trunkline
