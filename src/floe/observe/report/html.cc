#include "floe/observe/report/html.h"

#include "floe/core/str.h"
#include "floe/core/utf8.h"

namespace floe::report {
namespace {

// The look of the page and its script. Both live in it: it needs no network.

constexpr std::string_view kStyle = R"css(
:root { color-scheme: light dark;
  --back: #fbfcfd; --card: #ffffff; --text: #1c2733; --soft: #5b6b7b; --line: #dfe5eb; --bad: #b42318;
  --c0: #1f6feb; --c1: #d9480f; --c2: #2b8a3e; --c3: #9c36b5; --c4: #c2850c; --c5: #0b7285; --c6: #c2255c; --c7: #5f6b77; }
@media (prefers-color-scheme: dark) { :root {
  --back: #12171d; --card: #1a2129; --text: #e4eaf0; --soft: #9aa8b6; --line: #2d3843; --bad: #ff8a7a;
  --c0: #6ea8fe; --c1: #ff9456; --c2: #69db7c; --c3: #da8ff0; --c4: #f2c14e; --c5: #4dd0e1; --c6: #ff7aa8; --c7: #a9b5c1; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px; max-width: 1400px; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 26px; margin: 0; } h2 { font-size: 19px; margin: 36px 0 12px; }
.note, .none, header p { color: var(--soft); margin: 2px 0 8px; } .bad { color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(170px, 1fr)); gap: 12px; margin-top: 18px; }
.tile, figure, table, details.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
.tile { padding: 10px 14px; } .tile span { color: var(--soft); font-size: 13px; display: block; overflow-wrap: anywhere; }
.tile b { font-size: 20px; font-weight: 600; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 520px), 1fr)); gap: 16px; }
figure { margin: 0; padding: 12px 14px; } figcaption { font-weight: 600; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 16px; margin: 0 0 4px; padding: 0; font-size: 13px; }
.legend i { display: inline-block; width: 14px; height: 3px; margin: 0 6px 3px 0; background: var(--c); }
svg.chart { width: 100%; height: auto; display: block; }
.grid { stroke: var(--line); } .tick { fill: var(--soft); font-size: 11px; }
.curve { fill: none; stroke: var(--c); stroke-width: 1.6; stroke-linejoin: round; stroke-linecap: round; }
.curve.raw { opacity: .35; stroke-width: 1; } .curve.smooth { stroke-width: 2.2; } .curve.dot { stroke-width: 6; opacity: 1; }
.strip { fill: var(--c); } .swatch { display: inline-block; width: 14px; height: 8px; margin-right: 8px; background: var(--c); }
.band { fill: var(--c); opacity: .15; } .pointer { stroke: var(--soft); visibility: hidden; }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); }
.c4 { --c: var(--c4); } .c5 { --c: var(--c5); } .c6 { --c: var(--c6); } .c7 { --c: var(--c7); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 5px 12px; border-top: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; }
#events, #ranks, #single, #times, #phases, .owners { width: auto; } .owners { border: 0; margin-top: 6px; } th { color: var(--soft); font-weight: 600; border-top: 0; } td.number, th.number { text-align: right; white-space: nowrap; }
td.bar { min-width: 160px; } td.bar div { background: var(--c0); height: 10px; margin-top: 6px; border-radius: 3px; }
details { margin: 2px 0; } details details { margin-left: 20px; } summary { cursor: pointer; }
details.card { padding: 8px 14px; margin: 8px 0; } .unit { margin-left: 38px; color: var(--soft); font-size: 14px; }
.tag { border: 1px solid var(--line); border-radius: 10px; padding: 0 8px; font-size: 12px; color: var(--soft); margin-left: 6px; }
pre { overflow-x: auto; font-size: 12.5px; margin: 8px 0 0; }
ul.plain { padding-left: 20px; margin: 0; }
)css";

constexpr std::string_view kScript = R"js(
for (const figure of document.querySelectorAll('figure')) {
  const data = figure.querySelector('script');
  if (!data) continue;
  const chart = JSON.parse(data.textContent), svg = figure.querySelector('svg');
  const pointer = figure.querySelector('.pointer');
  const shown = [...figure.querySelectorAll('.legend b')], last = shown.map(b => b.textContent);
  const note = figure.querySelector('figcaption'), title = note.textContent;
  const text = value => {
    if (!chart.bytes) return String(Number(value.toPrecision(6)));
    for (const [unit, size] of [['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]])
      if (value >= size) return (value / size).toPrecision(4) + ' ' + unit;
    return value + ' B';
  };
  const nearest = (line, step) => {
    let low = 0, high = line.length - 1;
    while (high - low > 1) { const mid = (low + high) >> 1; if (line[mid][0] < step) low = mid; else high = mid; }
    return Math.abs(line[low][0] - step) <= Math.abs(line[high][0] - step) ? line[low] : line[high];
  };
  svg.addEventListener('pointermove', event => {
    const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) / box.width * 640;
    const share = Math.min(1, Math.max(0, (x - chart.left) / (chart.right - chart.left)));
    const step = chart.first + share * (chart.last - chart.first);
    let at = null;
    chart.lines.forEach((line, i) => {
      if (!line.length) return;
      const point = nearest(line, step);
      if (at === null || Math.abs(point[0] - step) < Math.abs(at - step)) at = point[0];
      shown[i].textContent = text(point[1]);
    });
    const place = chart.left + (at - chart.first) / (chart.last - chart.first) * (chart.right - chart.left);
    pointer.setAttribute('x1', place); pointer.setAttribute('x2', place);
    pointer.style.visibility = 'visible';
    note.textContent = title + ' \u2013 step ' + Math.round(at);
  });
  svg.addEventListener('pointerleave', () => {
    pointer.style.visibility = 'hidden';
    shown.forEach((b, i) => { b.textContent = last[i]; });
    note.textContent = title;
  });
}
)js";

}  // namespace

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : replace_invalid_utf8(text)) {
    switch (c) {
      case '&': safe += "&amp;"; break;
      case '<': safe += "&lt;"; break;
      case '>': safe += "&gt;"; break;
      case '"': safe += "&quot;"; break;
      case '\'': safe += "&#39;"; break;
      case '\n':
      case '\t': safe += c; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
          safe += "\xef\xbf\xbd";
        else
          safe += c;
    }
  }
  return safe;
}

std::string for_script(std::string json) {
  for (std::size_t at = 0; (at = json.find('<', at)) != std::string::npos;)
    json.replace(at, 1, "\\u003c");
  return json;
}

std::string page_html(std::string_view title, std::string_view body) {
  // The policy is a promise to the reader: the page loads nothing and sends nothing.
  return str("<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>",
             "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src "
             "'unsafe-inline'; script-src 'unsafe-inline'\">",
             "<meta name='viewport' content='width=device-width, initial-scale=1'>", "<title>",
             escaped(title), " \xe2\x80\x93 floe</title><style>", kStyle, "</style></head>\n<body>",
             body, "<script>", kScript, "</script></body></html>\n");
}

}  // namespace floe::report
