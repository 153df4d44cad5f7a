// Requests of `floe generate` and `floe score`: a JSON object on each line of a file.
//
//   {"prompt": "<image>A photo of", "images": ["cat.jpg"], "candidates": [" a cat", " a dog"]}
//
// `ids` may stand for `prompt`, and lists of ids for texts among the candidates; `id`, any value,
// comes back with the result. What is wrong with a line is part of what is read, never an
// exception: a run counts it and goes on.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "floe/generation/generate_session.h"
#include "floe/models/build.h"

namespace floe::requests {

// Why a request has no result, or not a whole one.
struct Problem {
  std::string reason;  // in a word, to count by: json, request, prompt, image, candidate
  std::string text;    // in a sentence that begins with the file and the line

  explicit operator bool() const { return !reason.empty(); }
};

// Whether the line is no request at all: whoever wrote the file has to mend it.
inline bool is_malformed(const std::string& reason) {
  return reason == "json" || reason == "request";
}

struct Request {
  std::int64_t number = 0;  // from 0
  std::string where;        // "'FILE' line 7: ", in front of what is wrong with it
  nlohmann::json id;        // null: none
  std::vector<std::string> pictures;
  generation::Prompt prompt;  // its images come with load_pictures
  // Those that have no tokens keep their place.
  std::vector<std::vector<std::int64_t>> candidates;
  Problem problem;
};

struct RequestNeeds {
  bool candidates = false;      // they are needed, else not looked at
  std::int64_t new_tokens = 1;  // that follow the prompt, without candidates
};

class RequestFile {
 public:
  // Throws ConfigError when there is no such file or nothing in it, DataError when it cannot be
  // read. `model` stays with the caller.
  RequestFile(std::string path, const models::BuiltModel& model, const RequestNeeds& needs);

  const std::string& path() const { return path_; }
  // Lines that are not blank.
  std::int64_t size() const { return static_cast<std::int64_t>(lines_.size()); }
  // Of the whole file: 8 hexadecimal digits.
  std::string digest() const;

  // Without its pictures, but whether they are there is looked at. Thread-safe.
  Request read(std::int64_t number) const;
  // Decodes and crops them as training does; sets `problem` for one that cannot be. Thread-safe.
  void load_pictures(Request& request) const;

 private:
  struct Line {
    std::size_t number = 0;  // in the file, from 1
    std::string_view text;
  };
  std::vector<std::int64_t> ids_of(const nlohmann::json& value, const std::string& what,
                                   bool add_special) const;
  void fill(Request& request, const nlohmann::json& json) const;

  std::string path_, text_;
  std::vector<Line> lines_;
  const models::BuiltModel& model_;
  RequestNeeds needs_;
};

// A picture as the model takes it, [1, 3, side, side] fp32. Throws DataError that names the file.
at::Tensor read_picture(const std::string& path, std::int64_t side);

}  // namespace floe::requests
