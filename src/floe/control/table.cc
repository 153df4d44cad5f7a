#include "floe/control/table.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "floe/core/error.h"

namespace floe::control {
namespace {

// Keys and values may have any bytes.
Message binary(const std::vector<std::string>& texts) {
  Message list = Message::array();
  for (const std::string& text : texts) list.push_back(Message::binary({text.begin(), text.end()}));
  return list;
}

std::vector<std::string> texts_of(const Message& message, const char* name) {
  std::vector<std::string> texts;
  const auto list = message.find(name);
  if (list == message.end()) return texts;
  require<DataError>(list->is_array(), "'", name, "' of a message is no list");
  for (const Message& one : *list) {
    require<DataError>(one.is_binary(), "'", name, "' of a message has something else than bytes");
    const auto& bytes = one.get_binary();
    texts.emplace_back(bytes.begin(), bytes.end());
  }
  return texts;
}

std::int64_t number_of(const Message& message, const char* name) {
  const auto value = message.find(name);
  if (value == message.end()) return 0;
  require<DataError>(value->is_number_integer(), "'", name, "' of a message is no number");
  return value->get<std::int64_t>();
}

}  // namespace

const std::string* Table::first_missing(const Request& request) const {
  if (request.op != Request::Op::get && request.op != Request::Op::wait) return nullptr;
  const auto missing =
      std::find_if(request.keys.begin(), request.keys.end(),
                   [this](const std::string& key) { return !values_.contains(key); });
  return missing == request.keys.end() ? nullptr : &*missing;
}

std::optional<Reply> Table::apply(const Request& request) {
  using enum Request::Op;
  const auto first_key = [&]() -> const std::string& {
    require<DataError>(!request.keys.empty(), "a request names no key");
    return request.keys.front();
  };
  const auto value = [&](std::size_t i) -> const std::string& {
    require<DataError>(i < request.values.size(), "a request lacks a value");
    return request.values[i];
  };
  const auto is_there = [this](const std::string& key) { return values_.contains(key); };
  Reply reply;
  switch (request.op) {
    case set:
      for (std::size_t i = 0; i < request.keys.size(); ++i) values_[request.keys[i]] = value(i);
      break;
    case get:
    case wait:
      if (first_missing(request)) return std::nullopt;
      if (request.op == get)
        for (const std::string& key : request.keys) reply.values.push_back(values_[key]);
      break;
    case look:
      for (const std::string& key : request.keys)
        if (is_there(key)) reply.values.push_back(values_[key]);
      reply.number = static_cast<std::int64_t>(reply.values.size());
      break;
    case add: {
      std::string& counter = values_[first_key()];
      std::int64_t now = 0;
      std::from_chars(counter.data(), counter.data() + counter.size(), now);
      reply.number = now + request.number;
      counter = std::to_string(reply.number);
      break;
    }
    case remove: reply.number = static_cast<std::int64_t>(values_.erase(first_key())); break;
    case compare_set: {
      const auto found = values_.find(first_key());
      const bool takes = found == values_.end() ? value(0).empty() : found->second == value(0);
      if (takes) values_[first_key()] = value(1);
      // As c10d has it: what is there now, and the expected value where nothing is.
      reply.values = {takes ? value(1) : found == values_.end() ? value(0) : found->second};
      break;
    }
    case append: values_[first_key()] += value(0); break;
    case count: reply.number = static_cast<std::int64_t>(values_.size()); break;
    case states: break;  // not the table's
  }
  return reply;
}

void put(Message& message, const Request& request) {
  message["op"] = static_cast<int>(request.op);
  if (!request.keys.empty()) message["keys"] = binary(request.keys);
  if (!request.values.empty()) message["values"] = binary(request.values);
  if (request.number != 0) message["number"] = request.number;
}

void put(Message& message, const Reply& reply) {
  if (!reply.values.empty()) message["values"] = binary(reply.values);
  if (reply.number != 0) message["number"] = reply.number;
}

Request request_of(const Message& message) {
  const std::int64_t op = number_of(message, "op");
  require<DataError>(op >= 0 && op <= static_cast<int>(Request::Op::states), "a request asks for ",
                     op, ", which is nothing");
  return {static_cast<Request::Op>(op), texts_of(message, "keys"), texts_of(message, "values"),
          number_of(message, "number")};
}

Reply reply_of(const Message& message) {
  return {texts_of(message, "values"), number_of(message, "number")};
}

}  // namespace floe::control
