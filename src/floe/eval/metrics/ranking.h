// How well scores of classes tell them apart.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace floe::eval {

// The area under the curve of true over false positives: how often a positive has a larger score
// than a negative, ties counting half. Not a number when there are only positives or only
// negatives.
double roc_auc(std::span<const double> scores, const std::vector<bool>& positive);

// The probability of each class whose logarithms, up to a common factor, these are.
std::vector<double> softmax(std::span<const double> log_probs);

}  // namespace floe::eval
