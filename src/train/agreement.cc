#include "train/agreement.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/crc32c.h"
#include "base/fail.h"
#include "bridge/arrays.h"
#include "train/together.h"

namespace trunkline {
namespace {

constexpr size_t kShown = 8;  // differences told in full
constexpr const char* kAbsent = "(absent)";

std::string list_ranks(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

// "a on rank 0; b on ranks 1, 2"
std::string who_has_what(const std::vector<std::string>& values) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<int>> ranks;
  for (size_t rank = 0; rank < values.size(); ++rank) {
    auto& holders = ranks[values[rank]];
    if (holders.empty()) order.push_back(values[rank]);
    holders.push_back(static_cast<int>(rank));
  }
  std::string text;
  for (const std::string& value : order) {
    text += fmt::format("{}{} on {}", text.empty() ? "" : "; ", value, list_ranks(ranks[value]));
  }
  return text;
}

std::string shorten(const std::vector<std::string>& lines) {
  std::string text;
  for (size_t i = 0; i < lines.size() && i < kShown; ++i) text += "\n  " + lines[i];
  if (lines.size() > kShown) text += fmt::format("\n  and {} more", lines.size() - kShown);
  return text;
}

using FactMap = std::map<std::string, std::string>;

std::string value_in(const FactMap& facts, const std::string& name) {
  const auto found = facts.find(name);
  return found == facts.end() ? kAbsent : found->second;
}

// For each name that any list has, in the order of the first list that has it: report(name, values).
template <typename Report>
void compare(const std::vector<std::vector<Fact>>& lists, Report report) {
  std::vector<FactMap> maps(lists.size());
  std::vector<std::string> names;
  FactMap seen;
  for (size_t i = 0; i < lists.size(); ++i) {
    for (const Fact& fact : lists[i]) {
      maps[i][fact.name] = fact.value;
      if (seen.emplace(fact.name, "").second) names.push_back(fact.name);
    }
  }
  for (const std::string& name : names) {
    std::vector<std::string> values;
    for (const FactMap& facts : maps) values.push_back(value_in(facts, name));
    if (std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) != values.end()) report(name, values);
  }
}

// TCP has checksums of its own.
bool is_checked(const Group& group) {
  const std::vector<CableTraffic> cables = group.cables();
  return Config::from_env().checksum ||
         std::all_of(cables.begin(), cables.end(), [](const CableTraffic& cable) { return cable.id == "tcp"; });
}

}  // namespace

void require_agreement(Group& group, const std::vector<Fact>& facts) {
  if (group.size() == 1) return;
  nlohmann::json mine = nlohmann::json::array();
  for (const Fact& fact : facts) mine.push_back({fact.name, fact.value});
  std::vector<std::vector<Fact>> lists;
  for (const std::string& text :
       gather_text(group, mine.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))) {
    auto& list = lists.emplace_back();
    for (const auto& pair : nlohmann::json::parse(text)) list.push_back({pair[0], pair[1]});
  }
  std::vector<std::string> lines;
  compare(lists, [&](const std::string& name, const std::vector<std::string>& values) {
    lines.push_back(fmt::format("{}: {}", name, who_has_what(values)));
  });
  if (!lines.empty()) fail(ErrorKind::mismatch, "the ranks do not agree:{}", shorten(lines));
}

std::string differences(const std::vector<Fact>& there, const std::vector<Fact>& here) {
  std::vector<std::string> lines;
  compare({there, here}, [&](const std::string& name, const std::vector<std::string>& values) {
    lines.push_back(fmt::format("{}: {} there, {} here", name, values[0], values[1]));
  });
  return shorten(lines);
}

std::vector<uint32_t> hashes_of(const Parameters& parameters) {
  std::vector<uint32_t> hashes;
  for (const mx::array& parameter : parameters) {
    const mx::array ordered = in_row_order(parameter);
    hashes.push_back(crc32c(ordered.data<char>(), ordered.nbytes()));
  }
  return hashes;
}

std::string suspects(int ranks, bool checked) {
  if (!checked) return "with TRUNKLINE_CRC=on: without checksums, a cable may have damaged what crossed it unnoticed";
  return ranks == 2 ? "suspect the memory of both ranks" : "suspect the memory of the rank that stands alone";
}

void require_equal_weights(Group& group, const std::vector<TensorShape>& layout, const Parameters& parameters,
                           int64_t step) {
  if (group.size() == 1) return;
  const std::vector<uint32_t> mine = hashes_of(parameters);
  std::vector<uint32_t> all(mine.size() * static_cast<size_t>(group.size()));
  group.all_gather(mine.data(), all.data(), mine.size(), Dtype::u32);
  for (size_t i = 0; i < mine.size(); ++i) {
    std::vector<std::string> values;
    bool equal = true;
    for (size_t rank = 0; rank < static_cast<size_t>(group.size()); ++rank) {
      const uint32_t hash = all[rank * mine.size() + i];
      equal = equal && hash == all[i];
      values.push_back(fmt::format("{:08x}", hash));
    }
    if (equal) continue;
    fail(ErrorKind::mismatch,
         "after step {}, the ranks' weights are no longer the same: {} is the first tensor that differs (checksum {}); "
         "go on from the last checkpoint with --resume, and {}",
         step, layout[i].name, who_has_what(values), suspects(group.size(), is_checked(group)));
  }
}

}  // namespace trunkline
