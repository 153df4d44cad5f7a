#include "floe/comm/control_store.h"

#include "floe/core/error.h"

namespace floe::comm {
namespace {

using control::Reply;
using control::Request;
using Bytes = std::vector<std::uint8_t>;

std::string text_of(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }
Bytes bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

Reply ControlStore::call(const Request& request, std::chrono::milliseconds wait) {
  auto reply = plane_->call(request, wait, /*unless_failed=*/true);
  require<CommError>(reply.has_value(), "nobody has set '",
                     request.keys.empty() ? "" : request.keys[0], "' within ", wait.count() / 1000,
                     " s (dist.timeout_s): a rank is stuck");
  return std::move(*reply);
}

void ControlStore::set(const std::string& key, const Bytes& value) {
  call({Request::Op::set, {key}, {text_of(value)}}, timeout_);
}

Bytes ControlStore::compareSet(const std::string& key, const Bytes& current, const Bytes& wanted) {
  const Request asked{Request::Op::compare_set, {key}, {text_of(current), text_of(wanted)}};
  return bytes_of(call(asked, timeout_).values.at(0));
}

Bytes ControlStore::get(const std::string& key) {
  return bytes_of(call({Request::Op::get, {key}}, timeout_).values.at(0));
}

std::int64_t ControlStore::add(const std::string& key, std::int64_t value) {
  return call({Request::Op::add, {key}, {}, value}, timeout_).number;
}

bool ControlStore::deleteKey(const std::string& key) {
  return call({Request::Op::remove, {key}}, timeout_).number > 0;
}

bool ControlStore::check(const std::vector<std::string>& keys) {
  return std::cmp_equal(call({Request::Op::look, keys}, timeout_).number, keys.size());
}

std::int64_t ControlStore::getNumKeys() { return call({Request::Op::count}, timeout_).number; }

void ControlStore::wait(const std::vector<std::string>& keys,
                        const std::chrono::milliseconds& timeout) {
  call({Request::Op::wait, keys}, timeout);
}

void ControlStore::append(const std::string& key, const Bytes& value) {
  call({Request::Op::append, {key}, {text_of(value)}}, timeout_);
}

std::vector<Bytes> ControlStore::multiGet(const std::vector<std::string>& keys) {
  std::vector<Bytes> values;
  for (const std::string& value : call({Request::Op::get, keys}, timeout_).values)
    values.push_back(bytes_of(value));
  return values;
}

void ControlStore::multiSet(const std::vector<std::string>& keys,
                            const std::vector<Bytes>& values) {
  std::vector<std::string> texts;
  for (const Bytes& value : values) texts.push_back(text_of(value));
  call({Request::Op::set, keys, texts}, timeout_);
}

}  // namespace floe::comm
