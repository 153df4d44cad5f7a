#include "floe/observe/report/html.h"

#include "floe/observe/metrics/protobuf.h"

namespace floe::report {

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : metrics::as_utf8(std::string(text))) {
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

}  // namespace floe::report
