#include "floe/data/shards/grouping.h"

#include <utility>

namespace floe::data {
namespace {

// `__x__` alone or as the first folder: metadata of the shard.
bool is_shard_metadata(std::string_view name) {
  const std::string_view first = name.substr(0, name.find('/'));
  const bool whole = first.size() == name.size();
  const std::size_t least = whole ? 2 : 4;  // a lone `__` is both beginning and end
  return first.size() >= least && first.starts_with("__") && first.ends_with("__");
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

// Where the key ends: at the first dot of the base name. A base name that begins with a dot counts
// its folder as part of the key: "dir/.x" is key "dir/" and suffix "x".
std::size_t key_end(std::string_view name) {
  const std::size_t last_slash = name.rfind('/');
  std::size_t base = last_slash == std::string_view::npos ? 0 : last_slash + 1;
  for (;;) {
    const std::size_t dot = name.find('.', base);
    if (dot != std::string_view::npos && dot > base &&
        name.find('/', dot) == std::string_view::npos)
      return dot;
    if (base == 0) return std::string_view::npos;
    const std::size_t slash = base < 2 ? std::string_view::npos : name.rfind('/', base - 2);
    base = slash == std::string_view::npos ? 0 : slash + 1;
  }
}

}  // namespace

std::optional<MemberName> split_member_name(std::string_view name) {
  if (is_shard_metadata(name)) return std::nullopt;
  const std::size_t dot = key_end(name);
  if (dot == std::string_view::npos) return std::nullopt;
  return MemberName{std::string(name.substr(0, dot)), lower(name.substr(dot + 1))};
}

std::optional<RawSample> Grouper::add(const std::string& shard, std::string_view name,
                                      Bytes bytes) {
  auto member = split_member_name(name);
  if (!member) return std::nullopt;
  // WebDataset keeps key and shard among the fields, so these two names are always taken.
  const bool reserved = member->suffix == "__key__" || member->suffix == "__url__";
  std::optional<RawSample> finished;
  if (!open_ || key_taken_ || reserved || member->key != open_->key ||
      open_->find(member->suffix)) {
    finished = close();
    open_ = RawSample{shard, std::move(member->key), {}};
  }
  key_taken_ = member->suffix == "__key__";
  hidden_ = hidden_ || (member->suffix == "__bad__" && !bytes.empty());
  open_->fields.push_back({std::move(member->suffix), std::move(bytes)});
  return finished;
}

std::optional<RawSample> Grouper::end_shard() {
  return rules_ == Rules::corrected ? close() : std::nullopt;
}

std::optional<RawSample> Grouper::finish() { return close(); }

std::optional<RawSample> Grouper::close() {
  auto sample = std::exchange(open_, std::nullopt);
  key_taken_ = false;
  return std::exchange(hidden_, false) ? std::nullopt : std::move(sample);
}

}  // namespace floe::data
