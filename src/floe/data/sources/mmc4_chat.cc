#include <utf8proc.h>

#include <algorithm>

#include "floe/data/python/str.h"
#include "floe/data/sample.h"
#include "floe/data/sources/mmc4.h"
#include "floe/data/sources/sample_text.h"

namespace floe::data {
namespace {

using Kind = Json::Kind;

constexpr std::string_view kMentionBegin = "_!_IMAGE", kMentionEnd = "_!_";

struct Mention {
  std::size_t begin = 0, end = 0;
};

// Every `_!_IMAGE<digits>_!_`; digits of any script, as Python's \d.
std::vector<Mention> find_mentions(std::string_view text) {
  std::vector<Mention> mentions;
  for (std::size_t begin = text.find(kMentionBegin); begin != std::string_view::npos;) {
    const std::size_t digits = begin + kMentionBegin.size();
    std::size_t at = digits;
    while (at < text.size()) {
      const CodePoint c = code_point_at(text, at);
      if (utf8proc_category(static_cast<utf8proc_int32_t>(c.value)) != UTF8PROC_CATEGORY_ND) break;
      at += c.bytes;
    }
    const bool complete = at > digits && text.substr(at).starts_with(kMentionEnd);
    if (complete) mentions.push_back({begin, at + kMentionEnd.size()});
    begin = text.find(kMentionBegin, complete ? mentions.back().end : begin + 1);
  }
  return mentions;
}

Picture read_picture(const Json& image_map, std::string_view key) {
  const Json* entry = image_map.find(key);
  keep_if(entry, reason::kBadDocument, "image_map has no ", key);
  const Json* base64 = entry->find("base64_image");
  keep_if(base64, reason::kBadDocument, key, " of image_map has no base64_image");
  return {std::string(key), decode_picture_file(*base64), {}};
}

// The reference: pictures by number, whatever the text mentions; too many marks cut the text in
// front of mark number max_images.
Interleaved read_by_number(std::string_view text, const Json& image_map,
                           const Mmc4Settings& settings) {
  Interleaved chat;
  for (std::size_t number = 1; number <= image_map.members.size(); ++number)
    chat.pictures.push_back(read_picture(image_map, str(kMentionBegin, number, kMentionEnd)));
  const auto max_images = static_cast<std::size_t>(settings.max_images);
  for (std::size_t i = 0; i < std::min(chat.pictures.size(), max_images); ++i)
    chat.shown.push_back(i);

  std::string marked;
  std::size_t start = 0;
  for (const Mention& mention : find_mentions(text)) {
    marked.append(text, start, mention.begin - start).append(kEndOfChunkMark).append(kImageMark);
    start = mention.end;
  }
  chat.text = tidy_marks(marked.append(text, start));
  std::vector<std::size_t> marks;
  for (std::size_t at = chat.text.find(kImageMark); at != std::string::npos;
       at = chat.text.find(kImageMark, at + kImageMark.size()))
    marks.push_back(at);
  if (marks.size() > max_images) chat.text.resize(marks[max_images - 1]);
  return chat;
}

// Corrected: each mention brings the picture that it names; mentions of missing or unreadable ones
// are left out; the text ends before the mention that would be one too many.
Interleaved read_by_mention(std::string_view text, const Json& image_map,
                            const Mmc4Settings& settings) {
  Interleaved chat;
  for (const JsonMember& member : image_map.members) {
    try {
      chat.pictures.push_back(read_picture(image_map, member.key));
    } catch (const Drop&) {
      continue;  // as good as missing
    }
  }
  leave_out_unreadable(chat.pictures);
  std::string marked;
  std::size_t start = 0;
  for (const Mention& mention : find_mentions(text)) {
    marked.append(text, start, mention.begin - start);
    start = mention.end;
    const std::string key(text.substr(mention.begin, mention.end - mention.begin));
    const auto picture =
        std::find_if(chat.pictures.begin(), chat.pictures.end(),
                     [&](const auto& p) { return std::get<std::string>(p.name) == key; });
    if (picture == chat.pictures.end()) continue;
    if (chat.shown.size() == static_cast<std::size_t>(settings.max_images)) {
      start = text.size();
      break;
    }
    marked.append(kEndOfChunkMark).append(kImageMark);
    chat.shown.push_back(static_cast<std::size_t>(picture - chat.pictures.begin()));
  }
  chat.text = tidy_marks(marked.append(text, start));
  return chat;
}

}  // namespace

Interleaved read_chat(const Json& document, const Mmc4Settings& settings) {
  const Json* text = document.find("example");
  keep_if(text && text->is(Kind::string), reason::kBadDocument,
          "the document has no text 'example'");
  const Json* image_map = document.find("image_map");
  keep_if(image_map && image_map->is(Kind::object), reason::kBadDocument,
          "the document has no image_map");
  keep_if(!image_map->members.empty(), reason::kNoImage, "image_map is empty");
  return settings.rules == Rules::corrected
             ? read_by_mention(without_marks(text->text), *image_map, settings)
             : read_by_number(text->text, *image_map, settings);
}

}  // namespace floe::data
