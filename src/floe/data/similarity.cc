#include "floe/data/similarity.h"

#include "floe/data/drop.h"

namespace floe::data {
namespace {

using Kind = Json::Kind;

// Larger integers make numpy's array one of Python objects, with which no assignment is found.
bool is_machine_integer(const Json& value) {
  constexpr double kMost = 18446744073709551616.0, kLeast = -9223372036854775808.0;
  return value.is(Kind::integer) && value.number < kMost && value.number >= kLeast;
}

double as_number(const Json& element) {
  return element.is(Kind::boolean) ? (element.truth ? 1.0 : 0.0) : element.number;
}

}  // namespace

Similarities pick_similarities(const Json& matrix, const std::vector<std::size_t>& images) {
  keep_if(matrix.is(Kind::array) && !matrix.items.empty(), reason::kBadMatrix,
          "the similarity matrix is no list of rows");
  const std::size_t columns = matrix.items.front().items.size();
  bool any_boolean = false, any_number = false;
  for (const Json& row : matrix.items) {
    keep_if(row.is(Kind::array) && row.items.size() == columns, reason::kBadMatrix,
            "the rows of the similarity matrix differ in length");
    for (const Json& element : row.items) {
      const bool number = element.is(Kind::real) || is_machine_integer(element);
      keep_if(number || element.is(Kind::boolean), reason::kBadMatrix,
              "the similarity matrix has an entry that is no number");
      (number ? any_number : any_boolean) = true;
    }
  }
  keep_if(any_number || !any_boolean, reason::kBadMatrix,
          "the similarity matrix has only true and false");
  Similarities picked{images.size(), columns, {}};
  picked.values.reserve(images.size() * columns);
  for (const std::size_t image : images) {
    keep_if(image < matrix.items.size(), reason::kBadMatrix, "the similarity matrix has ",
            matrix.items.size(), " rows, none for image ", image);
    for (const Json& element : matrix.items[image].items)
      picked.values.push_back(as_number(element));
  }
  return picked;
}

}  // namespace floe::data
