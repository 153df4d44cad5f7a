#include "floe/control/hello.h"

#include <map>
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

Message message_of(const std::vector<Member>& members) {
  std::map<std::string, std::size_t> numbers;
  Message texts = Message::array(), list = Message::array();
  const auto number_of = [&](const std::string& text) {
    const auto [found, is_new] = numbers.try_emplace(text, numbers.size());
    if (is_new) texts.push_back(text);
    return found->second;
  };
  for (const Member& m : members)
    list.push_back({m.local_rank, m.pid, number_of(m.host), number_of(m.host_id),
                    number_of(m.address), number_of(m.device)});
  return {{"texts", std::move(texts)}, {"list", std::move(list)}};
}

std::vector<Member> members_of(const Message& message, const Member& self) {
  try {
    const auto texts = message.at("texts").get<std::vector<std::string>>();
    std::vector<Member> members;
    for (const Message& one : message.at("list")) {
      Member& m = members.emplace_back(self);
      m.rank = static_cast<int>(members.size()) - 1;
      m.local_rank = one.at(0).get<int>();
      m.pid = one.at(1).get<std::int64_t>();
      std::size_t i = 2;
      for (std::string* text : {&m.host, &m.host_id, &m.address, &m.device})
        *text = texts.at(one.at(i++).get<std::size_t>());
    }
    return members;
  } catch (const std::exception&) {
    throw DataError("it did not say who is there");
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
