#include "link/hello.h"

#include <algorithm>

#include "link/message.h"

namespace trunkline {

std::string who(size_t rank, const Member& member) {
  return fmt::format("rank {} ({}, process {})", rank, member.host, member.pid);
}

std::string Hello::encode() const {
  Encoder encoder;
  encoder.put(version).put(size).put(lanes).put(member.pid).put(member.host).put(member.address);
  encoder.put(static_cast<uint32_t>(settings.size()));
  for (const SharedSetting& each : settings) encoder.put(each.name).put(each.value);
  return encoder.take();
}

Hello Hello::decode(std::string_view bytes) {
  Decoder decoder(bytes);
  Hello hello;
  hello.version = decoder.get<uint32_t>();
  if (hello.version != kWireVersion) return hello;  // the rest may look different there
  hello.size = decoder.get<int32_t>();
  hello.lanes = decoder.get<int32_t>();
  hello.member.pid = decoder.get<int64_t>();
  hello.member.host = decoder.text();
  hello.member.address = decoder.text();
  for (auto left = decoder.get<uint32_t>(); left > 0; --left) {
    SharedSetting setting;
    setting.name = decoder.text();
    setting.value = decoder.text();
    hello.settings.push_back(std::move(setting));
  }
  return hello;
}

void check_fits(size_t from, const Hello& theirs, const Hello& own, const Member* taken) {
  if (theirs.version != kWireVersion) {
    fail(ErrorKind::mismatch,
         "rank {} speaks wire version {}, rank 0 ({}) version {}: install the same Trunkline on both", from,
         theirs.version, own.member.host, kWireVersion);
  }
  if (theirs.size != own.size) {
    fail(ErrorKind::mismatch, "{} was told that the job has {} ranks, {} that it has {}", who(from, theirs.member),
         theirs.size, who(0, own.member), own.size);
  }
  if (from >= static_cast<size_t>(own.size)) {
    fail(ErrorKind::mismatch, "{} joined the job of {}, which has only {} ranks", who(from, theirs.member),
         who(0, own.member), own.size);
  }
  if (taken != nullptr) {
    fail(ErrorKind::mismatch, "two processes say that they are rank {}: process {} on {} and process {} on {}", from,
         taken->pid, taken->host, theirs.member.pid, theirs.member.host);
  }
  if (theirs.lanes != 0 && theirs.lanes != own.lanes) {
    fail(ErrorKind::mismatch, "{} wants {} lanes, {} has {}: give --lanes (TRUNKLINE_LANES) alike to every rank",
         who(from, theirs.member), theirs.lanes, who(0, own.member), own.lanes);
  }
  for (size_t i = 0; i < std::min(theirs.settings.size(), own.settings.size()); ++i) {
    const SharedSetting &their = theirs.settings[i], &mine = own.settings[i];
    if (their.name == mine.name && their.value == mine.value) continue;
    fail(ErrorKind::mismatch, "{} has {}, {} has {}: give {} alike to every rank", who(from, theirs.member),
         their.value, who(0, own.member), mine.value, mine.name);
  }
}

}  // namespace trunkline
