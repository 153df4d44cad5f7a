#include "floe/control/hello.h"

#include <nlohmann/json.hpp>

#include "floe/core/error.h"

namespace floe::control {
namespace {

std::string job_of(const Member& member) {
  return member.job.empty() ? std::string("one that no launcher has named")
                            : str("'", member.job, "'");
}

}  // namespace

Message message_of(const Member& m) {
  return {{"floe", kProtocol},          {"rank", m.rank},     {"world_size", m.world_size},
          {"local_rank", m.local_rank}, {"job", m.job},       {"run", m.run},
          {"version", m.version},       {"host", m.host},     {"host_id", m.host_id},
          {"address", m.address},       {"device", m.device}, {"pid", m.pid}};
}

Member member_of(const Message& message) {
  try {
    require<DataError>(message.value("floe", 0) == kProtocol,
                       "it does not speak as this version of floe does");
    Member m;
    m.rank = message.at("rank").get<int>();
    m.world_size = message.at("world_size").get<int>();
    m.local_rank = message.at("local_rank").get<int>();
    m.pid = message.at("pid").get<std::int64_t>();
    for (const auto& [name, text] : {std::pair{"job", &m.job},
                                     {"run", &m.run},
                                     {"version", &m.version},
                                     {"host", &m.host},
                                     {"host_id", &m.host_id},
                                     {"address", &m.address},
                                     {"device", &m.device}})
      *text = message.at(name).get<std::string>();
    return m;
  } catch (const nlohmann::json::exception&) {
    throw DataError("it did not say who it is");
  }
}

Verdict judge(const Member& server, const Member& other) {
  using enum Verdict::Kind;
  if (server.job != other.job)
    return {stranger, str("two jobs use one port: the job that listens there is ", job_of(server),
                          ", that of this process is ", job_of(other),
                          "; give each job a MASTER_PORT of its own")};
  // Where no launcher has named the job and the runs differ, it may as well be another job.
  const bool same_run = !server.run.empty() && server.run == other.run;
  const Verdict::Kind differs = server.job.empty() && !same_run ? stranger : wrong;
  const auto difference = [&](const char* what, const auto& here, const auto& there) -> Verdict {
    return {differs, str("rank ", other.rank, " on ", other.host, " was started with ", what, " ",
                         there, ", rank 0 on ", server.host, " with ", here,
                         differs == stranger
                             ? "; if it is of another job, give each job a MASTER_PORT of its own, "
                               "else start all ranks alike"
                             : "; start all ranks alike")};
  };
  if (server.world_size != other.world_size)
    return difference("a world size of", server.world_size, other.world_size);
  if (server.run != other.run) return difference("the run folder", server.run, other.run);
  if (server.version != other.version) return difference("floe", server.version, other.version);
  if (other.rank < 1 || other.rank >= server.world_size)
    return {differs, str("a process on ", other.host, " says that it is rank ", other.rank, " of ",
                         server.world_size, ", and rank 0 is on ", server.host,
                         "; every process needs a rank of its own")};
  return {};
}

}  // namespace floe::control
