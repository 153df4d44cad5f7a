#include "floe/observe/report/report.h"

#include "floe/core/str.h"
#include "floe/observe/report/html.h"
#include "floe/observe/report/sections.h"

namespace floe::report {

std::string report_html(const RunFolder& run) {
  // The policy is a promise to the reader: the page loads nothing and sends nothing.
  return str("<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>",
             "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src "
             "'unsafe-inline'; script-src 'unsafe-inline'\">",
             "<meta name='viewport' content='width=device-width, initial-scale=1'>", "<title>",
             escaped(run.name), " \xe2\x80\x93 floe</title><style>", kStyle,
             "</style></head>\n<body>", summary_section(run), problem_section(run),
             curve_sections(run), phase_section(run), memory_section(run), unit_section(run),
             time_section(run), settings_section(run), log_section(run), "<script>", kScript,
             "</script></body></html>\n");
}

}  // namespace floe::report
