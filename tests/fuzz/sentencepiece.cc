// Any bytes as a SentencePiece model: refused with a DataError or ConfigError, or it encodes and
// decodes.
#include "floe/token/sentencepiece/sentencepiece.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "floe/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const int fd = ::memfd_create("fuzz", 0);
  if (fd < 0 || ::write(fd, data, size) != static_cast<ssize_t>(size)) std::abort();
  for (const bool legacy : {true, false}) {
    floe::token::TokenizerConfig config;
    config.class_name = "LlamaTokenizer";
    config.legacy = legacy;
    config.roles["bos_token"] = floe::token::special_token("<s>");
    config.roles["unk_token"] = floe::token::special_token("<unk>");
    try {
      const auto tokenizer =
          floe::token::load_sentencepiece("/proc/self/fd/" + std::to_string(fd), config);
      for (const char* text : {"", "a", " ab  abc ", "It's <s>x\n",
                               "e\xcc\x81\xe6\xb0\xb4\xf0\x9f\x98\x80 \xef\xac\x81"}) {
        const auto ids = tokenizer->encode(text);
        for (const std::int32_t id : ids) tokenizer->token_of(id);
        tokenizer->decode(ids);
      }
    } catch (const floe::DataError&) {
    } catch (const floe::ConfigError&) {
    }
  }
  ::close(fd);
  return 0;
}
