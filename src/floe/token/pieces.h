// The pieces of a text while it is cut into words.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace floe::token {

class Pieces {
 public:
  // One piece; `at_start`: it begins where the whole input begins. The text must outlive the pieces.
  void begin(std::string_view text, bool at_start) {
    now_.assign(1, text);
    num_texts_ = 0;
    at_start_ = at_start;
  }

  const std::vector<std::string_view>& all() const { return now_; }
  bool at_start() const { return at_start_; }

  // Calls cut(piece) for each; what it adds are the pieces from then on.
  template <class Cut>
  void cut_each(const Cut& cut) {
    next_.clear();
    for (const std::string_view piece : now_) cut(piece);
    now_.swap(next_);
  }
  // Empty pieces disappear.
  void add(std::string_view piece) {
    if (!piece.empty()) next_.push_back(piece);
  }
  // A buffer for text that is not a part of the input, empty; it lives until the next begin().
  std::string& new_text() {
    if (num_texts_ == texts_.size()) texts_.emplace_back();
    texts_[num_texts_].clear();
    return texts_[num_texts_++];
  }

 private:
  std::vector<std::string_view> now_, next_;
  std::deque<std::string> texts_;
  std::size_t num_texts_ = 0;
  bool at_start_ = false;
};

}  // namespace floe::token
