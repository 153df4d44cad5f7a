// Any text as tokenizer.json: refused with a DataError or ConfigError, or it encodes and decodes.
#include <cstdint>
#include <cstdlib>

#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/core/utf8.h"
#include "floe/io/file/json_text.h"
#include "floe/token/json/json_tokenizer.h"

namespace {

constexpr const char* kTexts[] = {
    "", "a", "  ab abc  ", "It's 2024: <image>x</s>\r\n\n\t",
    "e\xcc\x81\xe2\x96\x81 \xe6\xb0\xb4\xf0\x9f\x98\x80 \xef\xac\x81"};

void use(floe::token::Tokenizer& tokenizer) {
  for (const char* text : kTexts) {
    const auto ids = tokenizer.encode(text);
    for (const std::int32_t id : ids)
      if (id < 0) std::abort();
    for (const bool skip : {false, true})
      if (floe::find_invalid_utf8(tokenizer.decode(ids, skip)) != std::string::npos) std::abort();
  }
  if (tokenizer.size() > tokenizer.add_special_tokens({"<image>"})) std::abort();
  if (tokenizer.encode("<image>", false).empty()) std::abort();
  tokenizer.describe();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  floe::log::set_level(floe::log::Level::error);
  try {
    const auto document =
        floe::parse_json(std::string(reinterpret_cast<const char*>(data), size), "fuzz");
    floe::token::JsonTokenizer tokenizer(document, {}, "fuzz");
    use(tokenizer);
  } catch (const floe::DataError&) {
  } catch (const floe::ConfigError&) {
  }
  return 0;
}
