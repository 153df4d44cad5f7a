// CIDEr of captions, as the package pycocoevalcap computes it (its class Cider, n = 4, sigma = 6).
//
//   const CiderScores scores = cider({{ptb_words("a dog"), {ptb_words("The dog."), ...}}, ...});
//   scores.mean * 100;  // what OpenFlamingo reports
#pragma once

#include <string>
#include <vector>

namespace floe::eval {

using Words = std::vector<std::string>;

// Of one image.
struct Captioned {
  Words caption;
  std::vector<Words> references;  // at least one
};

struct CiderScores {
  double mean = 0;
  std::vector<double> each;
};

// How rare an n-gram is follows from the references of these images alone, so that a score depends
// on which images are asked. None: a mean of 0. Throws DataError for an image without references.
CiderScores cider(const std::vector<Captioned>& images);

}  // namespace floe::eval
