// Text that comes from a run, made safe for a page, and the page itself.
#pragma once

#include <string>
#include <string_view>

namespace floe::report {

// For content and for attributes in quotes: markup is shown, not obeyed; bytes that are not UTF-8
// and control characters become U+FFFD.
std::string escaped(std::string_view text);
// A JSON text for a <script> element: no '<' is left that could end it.
std::string for_script(std::string json);

// A whole page with the look and the script of the report around its body.
std::string page_html(std::string_view title, std::string_view body);

}  // namespace floe::report
