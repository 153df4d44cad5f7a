#include "floe/eval/metrics/vqa_accuracy.h"

#include <algorithm>
#include <map>
#include <set>

#include "floe/core/str.h"
#include "floe/eval/metrics/words.h"

namespace floe::eval {
namespace {

constexpr std::string_view kPunctuation = ";/[]\"{}()=+\\_-><@`,?!";
// The reference passes re.UNICODE where a count belongs.
constexpr int kMostPeriods = 32;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Right spellings; the wrong ones are these without one of their apostrophes.
const std::map<std::string, std::string>& contractions() {
  static const std::map<std::string, std::string> table = [] {
    std::map<std::string, std::string> spelt;
    for (const std::string& right : split_words(
             "ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't "
             "hadn't've hasn't haven't he'd he'd've he's how'd how'll how's isn't it'd it'd've "
             "it'll ma'am mightn't mightn't've might've mustn't must've needn't not've o'clock "
             "oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've somebody'd've "
             "somebody'll somebody's someone'd someone'd've someone'll someone's something'd "
             "something'd've something'll that's there'd there'd've there're there's they'd "
             "they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're "
             "what's what've when's where'd where's where've who'd who'd've who'll who's who've "
             "why'll why're why's won't would've wouldn't wouldn't've y'all y'all'll y'all'd've "
             "you'd you'd've you'll you're you've"))
      for (std::size_t at = right.find('\''); at != std::string::npos;
           at = right.find('\'', at + 1))
        spelt[right.substr(0, at) + right.substr(at + 1)] = right;
    spelt["somebody'd"] = "somebodyd";  // the wrong way round in the reference
    return spelt;
  }();
  return table;
}

bool has_comma_in_number(std::string_view text) {
  for (std::size_t at = 1; at + 1 < text.size(); ++at)
    if (text[at] == ',' && is_digit(text[at - 1]) && is_digit(text[at + 1])) return true;
  return false;
}

// A mark beside a space goes; others become a space, unless there is a number such as 1,000.
std::string without_punctuation(std::string_view text) {
  std::string out(text);
  const bool number = has_comma_in_number(text);
  for (const char mark : kPunctuation) {
    const std::string alone(1, mark);
    const bool beside_space = text.find(alone + " ") != std::string_view::npos ||
                              text.find(" " + alone) != std::string_view::npos;
    out = replaced(out, alone, beside_space || number ? "" : " ");
  }
  std::string kept;
  int periods = 0;
  for (std::size_t at = 0; at < out.size(); ++at) {
    const bool in_number = at + 1 < out.size() && is_digit(out[at + 1]);
    if (out[at] == '.' && !in_number && periods < kMostPeriods)
      ++periods;
    else
      kept += out[at];
  }
  return kept;
}

std::string with_plain_words(std::string_view text) {
  static const std::map<std::string, std::string> numbers{
      {"none", "0"}, {"zero", "0"}, {"one", "1"},   {"two", "2"},   {"three", "3"}, {"four", "4"},
      {"five", "5"}, {"six", "6"},  {"seven", "7"}, {"eight", "8"}, {"nine", "9"},  {"ten", "10"}};
  static const std::set<std::string> articles{"a", "an", "the"};
  std::vector<std::string> words;
  for (std::string& word : split_words(lowered(text))) {
    if (const auto number = numbers.find(word); number != numbers.end()) word = number->second;
    if (articles.contains(word)) continue;
    const auto contraction = contractions().find(word);
    words.push_back(contraction == contractions().end() ? word : contraction->second);
  }
  return join(words, " ");
}

}  // namespace

std::string normalised_answer(std::string_view answer) {
  const std::string spaced = replaced(replaced(answer, "\n", " "), "\t", " ");
  return with_plain_words(without_punctuation(stripped(spaced)));
}

double vqa_accuracy(std::string_view answer, const std::vector<GivenAnswer>& given) {
  if (given.empty()) return 0;
  const std::string asked = normalised_answer(answer);
  std::vector<GivenAnswer> people;
  for (const GivenAnswer& one : given) people.push_back({normalised_answer(one.text), one.rest});
  double sum = 0;
  for (const GivenAnswer& left_out : people) {
    const auto agree = std::count_if(people.begin(), people.end(), [&](const GivenAnswer& other) {
      const bool same = other.text == left_out.text && other.rest == left_out.rest;
      return !same && other.text == asked;
    });
    sum += std::min(1.0, static_cast<double>(agree) / 3);
  }
  return sum / static_cast<double>(people.size());
}

}  // namespace floe::eval
