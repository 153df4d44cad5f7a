// Requests of `floe generate` and `floe score`, a JSON object on each line of a file, and those
// that `floe eval` makes of its samples.
//
//   {"prompt": "<image>A photo of", "images": ["cat.jpg"], "candidates": [" a cat", " a dog"]}
//
// `ids` may stand for `prompt`, and lists of ids for texts among the candidates; `id`, any value,
// comes back with the result. What is wrong with a line is part of what is read, never an
// exception: a run counts it and goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "floe/generation/generate_session.h"
#include "floe/image/transform.h"
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
  // Instead of files: pictures as they lie in a shard, until load_pictures.
  std::vector<std::vector<std::byte>> encoded;
  generation::Prompt prompt;  // its images come with load_pictures
  // Those that have no tokens keep their place.
  std::vector<std::vector<std::int64_t>> candidates;
  Problem problem;

  std::int64_t num_pictures() const { return std::ssize(pictures) + std::ssize(encoded); }
};

struct RequestNeeds {
  bool candidates = false;      // they are needed, else not looked at
  std::int64_t new_tokens = 1;  // that follow the prompt, without candidates
};

// Requests by number, from wherever they come. `model` stays with the caller.
class RequestSource {
 public:
  RequestSource(const models::BuiltModel& model, const RequestNeeds& needs)
      : model_(model), needs_(needs) {}
  virtual ~RequestSource() = default;
  RequestSource(const RequestSource&) = delete;
  RequestSource& operator=(const RequestSource&) = delete;

  virtual std::int64_t size() const = 0;
  // Of all that they say: 8 hexadecimal digits.
  virtual std::string digest() const = 0;

  // Without its pictures, but whether they are there is looked at. Thread-safe.
  virtual Request read(std::int64_t number) const = 0;
  // Decodes and crops them as training does; sets `problem` for one that cannot be. Thread-safe.
  void load_pictures(Request& request) const;

 protected:
  // What the object says, or what is wrong with it. `file`: beside which paths are looked for.
  void take(Request& request, const nlohmann::json& json, const std::string& file) const;

 private:
  std::vector<std::int64_t> ids_of(const nlohmann::json& value, const std::string& what,
                                   bool add_special) const;
  void fill(Request& request, const nlohmann::json& json, const std::string& file) const;
  void find_pictures(Request& request, const nlohmann::json& json, const std::string& file) const;

  const models::BuiltModel& model_;
  RequestNeeds needs_;
};

class RequestFile : public RequestSource {
 public:
  // Throws ConfigError when there is no such file or nothing in it, DataError when it cannot be
  // read.
  RequestFile(std::string path, const models::BuiltModel& model, const RequestNeeds& needs);

  const std::string& path() const { return path_; }
  std::int64_t size() const override { return static_cast<std::int64_t>(lines_.size()); }
  std::string digest() const override;
  Request read(std::int64_t number) const override;

 private:
  struct Line {              // that is not blank
    std::size_t number = 0;  // in the file, from 1
    std::string_view text;
  };

  std::string path_, text_;
  std::vector<Line> lines_;
};

// Requests that a program has made: the objects that would be lines of a file. Relative paths are
// looked for in the working directory.
class RequestList : public RequestSource {
 public:
  // `name`: of the list, for messages.
  RequestList(std::string name, std::vector<nlohmann::json> requests,
              const models::BuiltModel& model, const RequestNeeds& needs)
      : RequestSource(model, needs), name_(std::move(name)), requests_(std::move(requests)) {}

  const std::string& name() const { return name_; }
  std::int64_t size() const override { return static_cast<std::int64_t>(requests_.size()); }
  std::string digest() const override;
  Request read(std::int64_t number) const override;

 private:
  std::string name_;
  std::vector<nlohmann::json> requests_;
};

// A picture as the model takes it, [1, 3, side, side] fp32. Throws DataError that names the file.
at::Tensor read_picture(const std::string& path, const image::TransformOptions& options);

}  // namespace floe::requests
