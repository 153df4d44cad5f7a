#include "floe/inspect/sheet.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "floe/core/str.h"
#include "floe/core/utf8.h"
#include "floe/data/python/base64.h"
#include "floe/data/sources/sample_text.h"
#include "floe/image/image.h"
#include "floe/token/tokenizer.h"

namespace floe::inspect {
namespace {

constexpr std::string_view kIncomplete = "\xEF\xBF\xBD";  // U+FFFD

// What each id adds to the text before it. Ids that only begin a character add nothing; the one
// that completes it adds all of it.
std::vector<std::string> token_pieces(const token::Tokenizer& tokenizer,
                                      std::span<const std::int32_t> ids) {
  std::vector<std::string> pieces;
  std::string before;
  for (std::size_t count = 1; count <= ids.size(); ++count) {
    std::string text = tokenizer.decode(ids.first(count));
    while (text.ends_with(kIncomplete)) text.resize(text.size() - kIncomplete.size());
    if (text.starts_with(before)) {
      pieces.push_back(text.substr(before.size()));
      before = std::move(text);
    } else if (before.starts_with(text)) {  // what was complete is open again
      pieces.emplace_back();
    } else {  // a decoder that tidies earlier text
      pieces.push_back(tokenizer.token_of(ids[count - 1]));
      before = std::move(text);
    }
  }
  return pieces;
}

// Digits of 3 x 5 points, row by row from the top, the left point highest.
constexpr std::array<std::array<std::uint8_t, 5>, 10> kDigits{{{7, 5, 5, 5, 7},
                                                               {2, 6, 2, 2, 7},
                                                               {7, 1, 7, 4, 7},
                                                               {7, 1, 7, 1, 7},
                                                               {5, 5, 7, 1, 1},
                                                               {7, 4, 7, 1, 7},
                                                               {7, 4, 7, 5, 7},
                                                               {7, 1, 2, 2, 2},
                                                               {7, 5, 7, 5, 7},
                                                               {7, 5, 7, 1, 7}}};
constexpr int kPoint = 2;                       // pixels of a point
constexpr int kGap = 8, kCaption = 7 * kPoint;  // around crops; above each
constexpr std::uint8_t kPaper = 250, kInk = 60;

class Canvas {
 public:
  Canvas(int width, int height) {
    image_.width = width;
    image_.height = height;
    image_.rgb.assign(std::size_t{3} * width * height, kPaper);
  }

  void draw_crop(int left, int top, int size, const std::vector<std::uint8_t>& crop) {
    const std::size_t row_bytes = std::size_t{3} * size;
    for (int y = 0; y < size; ++y)
      std::copy_n(crop.data() + y * row_bytes, row_bytes, at(left, top + y));
  }

  void draw_number(int left, int top, std::size_t number) {
    for (const char c : std::to_string(number)) {
      const auto& rows = kDigits[static_cast<std::size_t>(c - '0')];
      for (int y = 0; y < 5 * kPoint; ++y)
        for (int x = 0; x < 3 * kPoint; ++x)
          if (rows[static_cast<std::size_t>(y / kPoint)] >> (2 - x / kPoint) & 1)
            std::fill_n(at(left + x, top + y), 3, kInk);
      left += 4 * kPoint;
    }
  }

  image::Image take() { return std::move(image_); }

 private:
  std::uint8_t* at(int x, int y) {
    return image_.rgb.data() + 3 * (static_cast<std::size_t>(y) * image_.width + x);
  }

  image::Image image_;
};

}  // namespace

void CropGrid::add(const Outcome& outcome) {
  const auto* sample = std::get_if<Sample>(&outcome);
  if (!sample) return;
  ++num_samples_;
  for (std::size_t i = 0; i < sample->num_images() && cells_.size() < most_; ++i) {
    const auto crop = sample->crop(i);
    cells_.push_back({num_samples_, {crop.begin(), crop.end()}});
  }
}

image::Image CropGrid::image() const {
  const int count = static_cast<int>(cells_.size());
  const int columns = std::max(1, static_cast<int>(std::ceil(std::sqrt(count * 1.5))));
  const int rows = std::max(1, (count + columns - 1) / columns);
  const int across = size_ + kGap, down = size_ + kCaption + kGap;
  Canvas canvas(columns * across + kGap, rows * down + kGap);
  for (int i = 0; i < count; ++i) {
    const Cell& cell = cells_[static_cast<std::size_t>(i)];
    const int left = kGap + i % columns * across, top = kGap + i / columns * down;
    canvas.draw_number(left, top, cell.sample);
    canvas.draw_crop(left, top + kCaption, size_, cell.crop);
  }
  return canvas.take();
}

namespace {

constexpr int kJpegQuality = 90;

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #68707a; --paper: #f5f6f8; --card: #fff;
  --line: #dfe3e8; --learn: #d9efdf; --learn-ink: #0f5132; --mark: #2f5fd0; --end: #b25a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #97a0aa; --paper: #14171b;
  --card: #1d2126; --line: #30363d; --learn: #1d3a2a; --learn-ink: #a9e0bd; --mark: #7ea2ff; --end: #ffb86b; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 2rem clamp(1rem, 4vw, 3rem); background: var(--paper); color: var(--ink);
  font: 15px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; letter-spacing: -.01em; }
h2 { font-size: 1.1rem; margin: 2.5rem 0 .75rem; }
.facts { color: var(--soft); margin: 0 0 1.5rem; }
.legend { display: flex; gap: 1rem; flex-wrap: wrap; margin: 0 0 1.5rem; font-size: .9rem; }
.cards { display: grid; gap: 1.1rem; grid-template-columns: repeat(auto-fill, minmax(330px, 1fr)); }
.mmc4 .cards { grid-template-columns: repeat(auto-fill, minmax(540px, 1fr)); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem; }
.card header { display: flex; justify-content: space-between; gap: 1rem; font-size: .82rem;
  color: var(--soft); margin-bottom: .6rem; }
.card header b { color: var(--ink); overflow-wrap: anywhere; }
.pictures { display: flex; flex-wrap: wrap; gap: .5rem; margin-bottom: .7rem; }
figure { margin: 0; font-size: .75rem; color: var(--soft); }
figure img { display: block; width: 112px; height: 112px; border-radius: 6px; }
.laion figure img { width: 100%; max-width: 224px; height: auto; }
.text { overflow-wrap: anywhere; line-height: 1.9; }
.text span { white-space: pre-wrap; border-radius: 3px; padding: .08em 0; color: var(--soft); }
.text .l { background: var(--learn); color: var(--learn-ink); }
.text .m, .text .e { font: 600 .74rem/1 ui-monospace, monospace; border: 1px solid; padding: .1em .35em; margin: 0 .15em; }
.text .m { color: var(--mark); } .text .e { color: var(--end); }
details { margin-top: .6rem; font-size: .78rem; color: var(--soft); }
code { font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; }
td, th { text-align: left; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
)";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : replace_invalid_utf8(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string shown(const data::ImageName& name) {
  return std::visit([](const auto& value) { return str(value); }, name);
}

void write_pictures(std::ostream& out, const Sample& sample, int size) {
  out << "<div class=pictures>";
  for (std::size_t i = 0; i < sample.num_images(); ++i) {
    const auto crop = sample.crop(i);
    const image::Image picture{size, size, {crop.begin(), crop.end()}};
    out << "<figure><img alt=\"\" src=\"data:image/jpeg;base64,"
        << data::encode_base64(image::encode_jpeg(picture, kJpegQuality)) << "\">"
        << escaped(shown(sample.images[i])) << " · " << sample.sizes[i].width << "×"
        << sample.sizes[i].height << "</figure>";
  }
  out << "</div>";
}

void write_text(std::ostream& out, const Sample& sample, const token::Tokenizer& tokenizer) {
  const auto pieces = token_pieces(tokenizer, sample.ids);
  const auto is_end = [&](const std::string& piece) {
    return piece == data::kEndOfChunkMark || piece == tokenizer.eos() || piece == tokenizer.bos();
  };
  out << "<div class=text>";
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    std::string kind = sample.labels[i] == kNoLabel ? "" : "l";
    if (pieces[i] == data::kImageMark) kind += " m";
    if (is_end(pieces[i])) kind += " e";
    out << "<span class=\"" << kind << "\" title=\"" << i << ": " << sample.ids[i] << "\">"
        << escaped(pieces[i]) << "</span>";
  }
  out << "</div><details><summary>" << sample.ids.size() << " ids</summary><code>"
      << join(sample.ids, " ") << "</code></details>";
}

}  // namespace

void ContactSheet::add(const Outcome& outcome, const Inspection& inspection) {
  std::ostringstream out;
  if (const auto* dropped = std::get_if<Dropped>(&outcome)) {
    if (++num_dropped_ > most_) return;
    out << "<tr><td>" << escaped(dropped->key) << "<td>" << escaped(dropped->reason) << "<td>"
        << escaped(dropped->detail) << "<td>" << escaped(dropped->shard) << "\n";
    dropped_rows_ += out.str();
    return;
  }
  if (++num_kept_ > most_) return;
  const Sample& sample = std::get<Sample>(outcome);
  out << "<article class=card><header><b>" << escaped(sample.key) << "</b><span>#" << num_kept_
      << "</span></header>";
  write_pictures(out, sample, inspection.crop_size());
  write_text(out, sample, inspection.tokenizer());
  out << "</article>\n";
  cards_ += out.str();
}

std::string ContactSheet::html(const Inspection& inspection) const {
  const std::size_t total = num_kept_ + num_dropped_;
  const std::string source = total ? inspection.source().id() : "no";
  std::ostringstream out;
  out << "<!doctype html><html lang=en><meta charset=utf-8>"
      << "<meta name=viewport content=\"width=device-width, initial-scale=1\">"
      << "<title>floe: " << source << " samples</title><style>" << kStyle << "</style>"
      << "<body class=" << source << "><h1>What training sees</h1><p class=facts>" << source
      << " · " << inspection.tallies().size() << " shards, the first "
      << escaped(inspection.tallies().empty() ? "none" : inspection.tallies().front().shard)
      << " · " << num_kept_ << " samples kept, " << num_dropped_ << " dropped · tokenizer "
      << escaped(inspection.options().tokenizer) << " · "
      << (inspection.options().data.rules == data::Rules::corrected ? "corrected rules"
                                                                    : "OpenFlamingo's rules")
      << "</p><div class=legend><span class=text><span class=l>learned</span> "
      << "<span>only read</span> <span class=m>&lt;image&gt;</span> "
      << "<span class=e>end</span></span><span style=\"color: var(--soft)\">"
      << "Point at a token for its place and id.</span></div><div class=cards>\n"
      << cards_ << "</div>";
  if (num_kept_ > most_)
    out << "<p class=facts>… and " << num_kept_ - most_ << " more, which --limit N shows.</p>";
  if (num_dropped_ > 0)
    out << "<h2>Dropped</h2><table><tr><th>key<th>reason<th>detail<th>shard\n"
        << dropped_rows_ << "</table>";
  if (num_dropped_ > most_) out << "<p class=facts>… and " << num_dropped_ - most_ << " more.</p>";
  out << "</body></html>\n";
  return out.str();
}

}  // namespace floe::inspect
