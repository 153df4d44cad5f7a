#include "floe/eval/metrics/cider.h"

#include <array>
#include <cmath>
#include <set>
#include <unordered_map>

#include "floe/core/error.h"

namespace floe::eval {
namespace {

constexpr std::size_t kMostWords = 4;  // of an n-gram
constexpr double kSigma = 6;

using Counts = std::array<std::unordered_map<std::string, double>, kMostWords>;

Counts count_ngrams(const Words& words) {
  Counts counts;
  for (std::size_t n = 0; n < kMostWords; ++n)
    for (std::size_t first = 0; first + n < words.size(); ++first) {
      std::string ngram;
      for (std::size_t w = first; w <= first + n; ++w) ngram += words[w] + '\n';
      counts[n][ngram] += 1;
    }
  return counts;
}

// Weights of a caption's n-grams by frequency and rarity.
struct Weighted {
  Counts weights;
  std::array<double, kMostWords> norm{};
  double length = 0;
};

class Corpus {
 public:
  explicit Corpus(const std::vector<std::vector<Counts>>& references)
      : log_images_(std::log(static_cast<double>(references.size()))) {
    for (const auto& of_image : references) {
      std::set<std::string> seen;
      for (const Counts& counts : of_image)
        for (const auto& of_length : counts)
          for (const auto& [ngram, count] : of_length) seen.insert(ngram);
      for (const std::string& ngram : seen) images_with_[ngram] += 1;
    }
  }

  Weighted weigh(const Counts& counts) const {
    Weighted out;
    for (std::size_t n = 0; n < kMostWords; ++n) {
      for (const auto& [ngram, count] : counts[n]) {
        const auto found = images_with_.find(ngram);
        const double images = found == images_with_.end() ? 1 : std::max(1.0, found->second);
        const double weight = count * (log_images_ - std::log(images));
        out.weights[n][ngram] = weight;
        out.norm[n] += weight * weight;
        if (n == 1) out.length += count;  // the package measures length in pairs of words
      }
      out.norm[n] = std::sqrt(out.norm[n]);
    }
    return out;
  }

 private:
  double log_images_;
  std::unordered_map<std::string, double> images_with_;
};

// The mean over lengths of n-grams of the clipped cosine, less for captions of another length.
double similarity(const Weighted& caption, const Weighted& reference) {
  const double delta = caption.length - reference.length;
  const double penalty = std::exp(-(delta * delta) / (2 * kSigma * kSigma));
  double sum = 0;
  for (std::size_t n = 0; n < kMostWords; ++n) {
    double product = 0;
    for (const auto& [ngram, weight] : caption.weights[n])
      if (const auto found = reference.weights[n].find(ngram); found != reference.weights[n].end())
        product += std::min(weight, found->second) * found->second;
    const double norms = caption.norm[n] * reference.norm[n];
    sum += (norms > 0 ? product / norms : product) * penalty;
  }
  return sum / static_cast<double>(kMostWords);
}

}  // namespace

CiderScores cider(const std::vector<Captioned>& images) {
  std::vector<std::vector<Counts>> references;
  for (std::size_t i = 0; i < images.size(); ++i) {
    require<DataError>(!images[i].references.empty(), "image ", i, " has no reference captions");
    auto& of_image = references.emplace_back();
    for (const Words& words : images[i].references) of_image.push_back(count_ngrams(words));
  }
  const Corpus corpus(references);
  CiderScores scores;
  for (std::size_t i = 0; i < images.size(); ++i) {
    const Weighted caption = corpus.weigh(count_ngrams(images[i].caption));
    double sum = 0;
    for (const Counts& reference : references[i])
      sum += similarity(caption, corpus.weigh(reference));
    scores.each.push_back(10 * sum / static_cast<double>(references[i].size()));
    scores.mean += scores.each.back();
  }
  if (!images.empty()) scores.mean /= static_cast<double>(images.size());
  return scores;
}

}  // namespace floe::eval
