// Accuracy of answers to questions about images, as the VQA challenge measures it and OpenFlamingo
// with it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace floe::eval {

// What one person answered. `rest`: whatever else a file says of it (id, confidence), in any form:
// see Note [Equal answers].
struct GivenAnswer {
  std::string text, rest;
};

// Without punctuation, articles and capitals, numbers to ten as digits, contractions with their
// apostrophe.
std::string normalised_answer(std::string_view answer);

// Note [Equal answers]
// An answer is right by how many people gave it: 3 make it wholly right. To be fair to those people
// the mean is taken over leaving each of them out. The reference leaves out everybody whose entry
// equals that of the one left out in all its parts. In most files entries have an id, so that this
// is one person; in VizWiz's they have none, and people who gave the same answer with the same
// confidence leave together. That is followed here.

// From 0 to 1; 0 when nobody gave an answer.
double vqa_accuracy(std::string_view answer, const std::vector<GivenAnswer>& given);

}  // namespace floe::eval
