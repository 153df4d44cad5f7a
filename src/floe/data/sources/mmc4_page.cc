#include <algorithm>
#include <cstddef>
#include <vector>

#include "floe/data/python/json.h"
#include "floe/data/python/str.h"
#include "floe/data/sample.h"
#include "floe/data/sources/assignment.h"
#include "floe/data/sources/mmc4.h"
#include "floe/data/sources/sample_text.h"

namespace floe::data {

namespace {

// The similarity matrix of an MMC4 document (images x sentences), as numpy would take it.

struct Similarities {
  std::size_t rows = 0, columns = 0;
  std::vector<double> values;  // row-major

  double at(std::size_t row, std::size_t column) const { return values[row * columns + column]; }
};

// The rows of these images, in this order. All of the matrix must be rectangular and numeric,
// though NaN does no harm in rows that are not asked for. true and false count as 1 and 0 beside at
// least one number. Throws Drop (bad_matrix).
Similarities pick_similarities(const Json& matrix, const std::vector<std::size_t>& images);

using Kind = Json::Kind;

// Larger integers make numpy's array one of Python objects, with which no assignment is found.
bool is_machine_integer(const Json& value) {
  constexpr double kMost = 18446744073709551616.0, kLeast = -9223372036854775808.0;
  return value.is(Kind::integer) && value.number < kMost && value.number >= kLeast;
}

double as_number(const Json& element) {
  return element.is(Kind::boolean) ? (element.truth ? 1.0 : 0.0) : element.number;
}

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

}  // namespace

namespace {

using Kind = Json::Kind;

constexpr std::size_t kMinPictureBytes = 11000;

// `"image_base64" in info` of Python: a key of a dict, an element of a list, a part of a string.
bool mentions_base64(const Json& info) {
  constexpr std::string_view kName = "image_base64";
  const auto is_name = [&](const Json& item) {
    return item.is(Kind::string) && item.text == kName;
  };
  switch (info.kind) {
    case Kind::object: return info.find(kName) != nullptr;
    case Kind::array: return std::any_of(info.items.begin(), info.items.end(), is_name);
    case Kind::string: return info.text.find(kName) != std::string_view::npos;
    default: throw Drop{reason::kBadDocument, "an entry of image_info is no object"};
  }
}

// The pictures that are large enough. Every base64 must be valid, whatever its size; corrected
// rules leave out what is not.
std::vector<Picture> read_pictures(const Json& image_info, Rules rules) {
  keep_if(image_info.is(Kind::array), reason::kBadDocument, "image_info is no list");
  std::vector<Picture> pictures;
  for (std::size_t i = 0; i < image_info.items.size(); ++i) {
    const Json& info = image_info.items[i];
    try {
      if (!mentions_base64(info)) continue;
      keep_if(info.is(Kind::object), reason::kBadDocument, "an entry of image_info is no object");
      Bytes file = decode_picture_file(*info.find("image_base64"));
      if (file.size() >= kMinPictureBytes)
        pictures.push_back({static_cast<std::int64_t>(i), std::move(file), {}});
    } catch (const Drop&) {
      if (rules == Rules::openflamingo) throw;
    }
  }
  return pictures;
}

struct Pair {
  std::size_t picture = 0, sentence = 0;
};

// Pictures and the sentences they belong to, in image order.
std::vector<Pair> match(const Json& matrix, const std::vector<Picture>& pictures,
                        double threshold) {
  std::vector<std::size_t> rows;
  for (const Picture& picture : pictures)
    rows.push_back(static_cast<std::size_t>(std::get<std::int64_t>(picture.name)));
  const Similarities similarities = pick_similarities(matrix, rows);
  const auto matches = or_drop(reason::kBadMatrix, [&] {
    return best_assignment(similarities.values, similarities.rows, similarities.columns);
  });
  std::vector<Pair> pairs;
  for (const auto& [row, column] : matches)
    if (similarities.at(row, column) >= threshold) pairs.push_back({row, column});
  return pairs;
}

// The sentences, joined, with a mark in front of each that has a picture.
std::string marked_text(const Json& sentences, const std::vector<Pair>& pairs, Rules rules) {
  keep_if(sentences.is(Kind::array), reason::kBadSentence, "text_list is no list");
  std::vector<bool> has_picture(sentences.items.size());
  for (const Pair& pair : pairs) {
    keep_if(pair.sentence < has_picture.size(), reason::kBadSentence,
            "a picture belongs to sentence ", pair.sentence, " of ", has_picture.size());
    has_picture[pair.sentence] = true;
  }
  std::string text;
  for (std::size_t i = 0; i < has_picture.size(); ++i) {
    const Json& sentence = sentences.items[i];
    keep_if(sentence.is(Kind::string) || has_picture[i], reason::kBadSentence, "sentence ", i,
            " is no text");
    if (i > 0) text += ' ';
    if (has_picture[i]) text.append(kEndOfChunkMark).append(kImageMark);
    const std::string words = python_str(sentence);
    text += rules == Rules::corrected ? without_marks(words) : words;
  }
  return text;
}

}  // namespace

Interleaved read_page(const Json& document, const Mmc4Settings& settings) {
  const Json* sentences = document.find("text_list");
  const Json* matrix = document.find("similarity_matrix");
  const Json* image_info = document.find("image_info");
  keep_if(sentences && image_info, reason::kBadDocument, "the document has no ",
          sentences ? "image_info" : "text_list");
  keep_if(matrix, reason::kBadMatrix, "the document has no similarity_matrix");

  Interleaved page;
  page.pictures = read_pictures(*image_info, settings.rules);
  if (settings.rules == Rules::corrected) leave_out_unreadable(page.pictures);
  keep_if(!page.pictures.empty(), reason::kNoImage, "no picture of at least ", kMinPictureBytes,
          " bytes");
  auto pairs = match(*matrix, page.pictures, settings.text_sim_threshold);
  keep_if(!pairs.empty(), reason::kNoImage, "no similarity of at least ",
          settings.text_sim_threshold);
  if (settings.rules == Rules::corrected)
    std::sort(pairs.begin(), pairs.end(),
              [](const Pair& a, const Pair& b) { return a.sentence < b.sentence; });
  if (pairs.size() > static_cast<std::size_t>(settings.max_images))
    pairs.resize(static_cast<std::size_t>(settings.max_images));
  for (const Pair& pair : pairs) page.shown.push_back(pair.picture);
  page.text = tidy_marks(marked_text(*sentences, pairs, settings.rules));
  return page;
}

}  // namespace floe::data
