// The formats below the sinks: checksums, protobuf's wire format, TensorFlow's records, W&B's
// entries.
#include <gtest/gtest.h>

#include <random>

#include "floe/core/error.h"
#include "floe/observe/sinks/protobuf.h"
#include "floe/observe/sinks/tensorboard.h"
#include "floe/observe/sinks/wandb_file.h"
#include "tests/io/scratch.h"

namespace floe::observe::framing_test {
namespace {

TEST(Crc32c, KnownValues) {
  // RFC 3720, B.4
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c(""), 0U);
}

TEST(TfRecord, LengthBytesAndChecksums) {
  const std::string record = tf_record("abc");
  ASSERT_EQ(record.size(), 8 + 4 + 3 + 4);
  EXPECT_EQ(record.substr(0, 8), std::string("\x03\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, 3), "abc");
  std::uint32_t stored = 0;
  std::memcpy(&stored, record.data() + 15, 4);
  EXPECT_EQ(stored, masked_crc(crc32c("abc")));
}

TEST(Protobuf, WireFormat) {
  const Message message =
      Message().integer(1, 150).text(2, "ab").integer(16, -1).number(3, 1.0).number32(4, 1.0F);
  EXPECT_EQ(message.encoded(), std::string("\x08\x96\x01\x12\x02"
                                           "ab"
                                           "\x80\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
                                           "\x19\0\0\0\0\0\0\xf0\x3f\x25\0\0\x80\x3f",
                                           33));
}

TEST(Protobuf, TextIsAlwaysUtf8) {
  EXPECT_EQ(Message().text(1, "a\xff").encoded(),
            "\x0a\x04"
            "a\xef\xbf\xbd");
}

TEST(Protobuf, ReadsBackWhatItWrote) {
  const Message message = Message().integer(1, -7).bytes(200, "xyz").number32(3, 2.5F);
  FieldReader fields(message.encoded());
  Field field;
  ASSERT_TRUE(fields.next(field));
  EXPECT_EQ(field.number, 1);
  EXPECT_EQ(static_cast<std::int64_t>(field.bits), -7);
  ASSERT_TRUE(fields.next(field));
  EXPECT_EQ(field.number, 200);
  EXPECT_TRUE(field.is_bytes);
  EXPECT_EQ(field.bytes, "xyz");
  ASSERT_TRUE(fields.next(field));
  EXPECT_EQ(field.bits, 0x40200000U);
  EXPECT_FALSE(fields.next(field));
  EXPECT_FALSE(fields.damaged());
}

TEST(Protobuf, DamageEndsTheReading) {
  const std::string bad[] = {"\x08",
                             std::string("\x0a\x05"
                                         "abc"),
                             std::string(11, '\xff'),
                             std::string("\x00\x01", 2),
                             "\x0b",
                             "\x09\x01\x02"};
  for (const std::string& bytes : bad) {
    FieldReader fields(bytes);
    Field field;
    EXPECT_FALSE(fields.next(field));
    EXPECT_TRUE(fields.damaged());
    EXPECT_FALSE(fields.next(field));
  }
}

// Entries of these sizes, one after the other, as a file.
std::string file_of(const std::vector<std::string>& entries) {
  std::string file = wandb::file_header();
  for (const std::string& entry : entries)
    file += wandb::entry(entry, static_cast<std::int64_t>(file.size()));
  return file;
}

std::vector<std::string> read_all(const std::string& path, std::string* damage = nullptr) {
  wandb::FileReader reader(path);
  std::vector<std::string> entries;
  for (std::string entry; reader.next(entry);) entries.push_back(entry);
  if (damage) *damage = reader.damage();
  return entries;
}

TEST(WandbFile, FirstBytesAreThoseOfTheFactSheet) {
  const std::string record =
      wandb::record(1, wandb::Kind::header,
                    Message().message(1, Message().text(1, "0.31.0").text(2, "0.0.1")).encoded());
  const std::string bytes = file_of({record});
  EXPECT_EQ(bytes.substr(0, 18), std::string("\x3a\x57\x26\x42\xe1\xbe\x00\xb2\x84\x86\xec\x16\x00"
                                             "\x01\x08\x01\xaa\x01",
                                             18));
}

TEST(WandbFile, EveryRestOfABlock) {
  // The first entry leaves 0 ... 12 bytes of its block: room for no head, a bare head, and a bit
  // more.
  for (std::size_t left = 0; left <= 12; ++left) {
    SCOPED_TRACE(left);
    test::Scratch scratch;
    const std::vector<std::string> entries{std::string(32768 - 7 - 7 - left, 'a'), "second",
                                           std::string(100'000, 'b'), "", "last"};
    const std::string path = scratch.write("f", file_of(entries));
    std::string damage;
    EXPECT_EQ(read_all(path, &damage), entries);
    EXPECT_EQ(damage, "");
  }
}

TEST(WandbFile, CutAnywhereKeepsWhatIsBeforeTheCut) {
  const std::vector<std::string> entries{"one", std::string(40'000, 'x'), "three"};
  const std::string whole = file_of(entries);
  test::Scratch scratch;
  for (std::size_t size = 7; size < whole.size(); size += size < 60 || size > 40'000 ? 1 : 977) {
    SCOPED_TRACE(size);
    std::string damage;
    const auto read = read_all(scratch.write("f", whole.substr(0, size)), &damage);
    ASSERT_LT(read.size(), entries.size());
    EXPECT_TRUE(std::equal(read.begin(), read.end(), entries.begin()));
    std::size_t clean = 7;  // the sizes at which an entry ends
    for (std::size_t i = 0; i < read.size(); ++i)
      clean += wandb::entry(entries[i], static_cast<std::int64_t>(clean)).size();
    EXPECT_EQ(damage.empty(), size == clean);
  }
}

TEST(WandbFile, FlippedBitsAreNoticed) {
  const std::string whole = file_of({"one", "two", std::string(500, 'x')});
  test::Scratch scratch;
  for (std::size_t at = 7; at < whole.size(); ++at) {
    std::string bytes = whole;
    bytes[at] ^= 0x10;
    std::string damage;
    read_all(scratch.write("f", bytes), &damage);
    EXPECT_NE(damage, "") << at;
  }
}

TEST(WandbFile, AnotherFileIsRefused) {
  test::Scratch scratch;
  EXPECT_THROW(wandb::FileReader(scratch.write("f", "")), DataError);
  EXPECT_THROW(wandb::FileReader(scratch.write("f", ":W&B\xe1\xbe\x01 newer")), DataError);
  EXPECT_THROW(wandb::FileReader(scratch.path("none")), DataError);
}

TEST(WandbRecords, RowsAreReadBack) {
  const Record record{.step = 12, .time_s = 100.5, .values = {{"loss", 1.5}}};
  const std::string row =
      wandb::record(3, wandb::Kind::history, wandb::history(record, 7.25).encoded());
  const auto parsed = wandb::parse_record(row);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->kind, wandb::Kind::history);
  EXPECT_EQ(wandb::parse_row(*parsed).step, 12);
  EXPECT_EQ(wandb::parse_row(*parsed).runtime_s, 7.25);
}

TEST(WandbRecords, NoiseIsNoRecord) {
  std::mt19937 random(1);
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes(random() % 40, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    if (const auto parsed = wandb::parse_record(bytes)) {
      wandb::parse_row(*parsed);
      wandb::RunStart start;
      wandb::parse_start(parsed->message, start);
      EXPECT_LE(start.time_s, 3e11);
    }
  }
}

}  // namespace
}  // namespace floe::observe::framing_test
