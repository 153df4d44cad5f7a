// Encodes a list of texts again and again on one thread; bench/tokenizer.py runs it.
//
// usage: bench_tokenizer TOKENIZER TEXTS.json SECONDS
// Prints one JSON line: passes over the texts, CPU seconds, ids per pass and a checksum of them.
#include <ctime>
#include <iostream>

#include "floe/core/bytes.h"
#include "floe/io/file/file.h"
#include "floe/io/file/json_text.h"
#include "floe/token/tokenizer.h"

namespace {

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: bench_tokenizer TOKENIZER TEXTS.json SECONDS\n";
    return 2;
  }
  try {
    const auto tokenizer = floe::token::load_tokenizer(argv[1]);
    const auto texts = floe::parse_json(floe::read_text(argv[2], floe::kGiB), argv[2])
                           .get<std::vector<std::string>>();
    const double seconds = std::stod(argv[3]);
    std::vector<std::int32_t> ids;
    std::int64_t num_ids = 0, checksum = 0, passes = -1;  // the first pass warms up
    double begin = 0;
    do {
      num_ids = checksum = 0;
      for (const std::string& text : texts) {
        ids.clear();
        tokenizer->encode(text, ids);
        num_ids += static_cast<std::int64_t>(ids.size());
        for (const std::int32_t id : ids) checksum = (checksum * 31 + id) % 1000000007;
      }
      if (++passes == 0) begin = cpu_seconds();
    } while (cpu_seconds() - begin < seconds || passes == 0);
    std::cout << nlohmann::json{{"passes", passes},
                                {"seconds", cpu_seconds() - begin},
                                {"ids", num_ids},
                                {"checksum", checksum}}
                     .dump()
              << "\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
