// Exchange of short texts between all ranks at once, over a connection to each: what the set-up of trunks needs.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "comm/watch.h"
#include "link/tcp_link.h"

namespace trunkline {

// Sends `texts[peer]` to each peer and returns what each has sent; this rank's own places are left empty. `links`: by
// rank. Throws Error(timeout) naming the ranks that are missing, Error(peer), or what has ended the job.
std::vector<std::string> exchange(const std::vector<std::string>& texts, std::vector<TcpLink>& links, size_t rank,
                                  Watch& watch, std::chrono::milliseconds timeout);

}  // namespace trunkline
