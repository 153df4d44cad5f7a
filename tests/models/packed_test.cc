// Packing changes nothing: rows without padding give what padded rows give, and one pass over two
// data sets gives what two passes give, with every oddity of real pages.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "floe/core/error.h"
#include "tests/models/golden.h"

namespace floe::packed_test {
namespace {

constexpr std::int64_t kSlots = 3, kLength = 44, kPad = 1;

struct Tokens {
  std::int64_t image = 0, endofchunk = 0;
};

// One page: which places hold `<image>`, how many images it has, how long it is.
struct Page {
  std::vector<std::int64_t> markers;
  std::int64_t images, length;
};
const std::vector<Page> kPages{
    {{3, 9}, 2, 20},                // text before the first image
    {{0, 5}, 1, 12},                // the second marker is literal text: it looks at a zero image
    {{1, 4, 6, 9, 11}, 3, 17},      // more markers than slots: everything evenly
    {{0, 2, 4, 6, 8}, 1, kLength},  // more markers than slots, some of them empty
    {{}, 0, 9},                     // no image at all
    {{}, 2, 7},                     // images that no text refers to
    {{2}, 0, 15},                   // a literal marker in a page without images
};
const std::vector<Page> kPairs{{{0}, 1, 11}, {{0}, 1, 6}, {{0}, 1, 8}};

struct Rows {
  at::Tensor ids, mask, labels, images;
};

Rows rows_of(const std::vector<Page>& pages, const Tokens& tokens, std::int64_t slots,
             std::uint64_t seed) {
  at::manual_seed(seed);
  const auto rows = static_cast<std::int64_t>(pages.size());
  Rows made{at::randint(3, 100, {rows, kLength}, at::kLong),
            at::zeros({rows, kLength}, at::kLong),
            {},
            at::zeros({rows, slots, 3, 32, 32})};
  for (std::int64_t row = 0; row < rows; ++row) {
    const Page& page = pages[static_cast<std::size_t>(row)];
    made.mask[row].narrow(0, 0, page.length).fill_(1);
    for (const std::int64_t place : page.markers) made.ids[row][place] = tokens.image;
    made.ids[row][page.length - 1] = tokens.endofchunk;
    if (page.images > 0) made.images[row].narrow(0, 0, page.images).normal_();
  }
  made.ids.masked_fill_(made.mask.eq(0), kPad);
  made.labels = made.ids.masked_fill(made.mask.eq(0), kNoLabel)
                    .masked_fill(made.ids.eq(tokens.image), kNoLabel);
  return made;
}

// As the data module makes it: real images only, and how many places there were for them.
PackedBatch without_zero_images(PackedBatch batch, const std::vector<Page>& pages) {
  std::vector<at::Tensor> images;
  std::vector<std::int64_t> offsets{0};
  batch.image_slots = batch.image_offsets.diff();
  for (std::size_t row = 0; row < pages.size(); ++row) {
    const auto first = batch.image_offsets[static_cast<std::int64_t>(row)].item<std::int64_t>();
    images.push_back(batch.images.narrow(0, first, pages[row].images));
    offsets.push_back(offsets.back() + pages[row].images);
  }
  batch.images = at::cat(images);
  batch.image_offsets = at::tensor(offsets, at::kLong);
  batch.validate();
  return batch;
}

struct Outcome {
  double loss = 0;
  std::vector<double> sums{0, 0};
  std::map<std::string, at::Tensor> gradients;
};

Outcome run(const test::GoldenModel& golden, const std::vector<PackedBatch>& passes) {
  models::InputOptions how;
  how.loss.weight = {0.2, 1.0};
  how.num_sources = 2;
  Outcome outcome;
  auto parameters = nn::named_parameters(*golden.built.module);
  for (auto& parameter : parameters) parameter.tensor.mutable_grad().reset();
  for (const PackedBatch& batch : passes) {
    const auto [loss, sums] =
        models::training_loss(golden.model(), models::prepare(golden.model(), batch, how));
    loss.backward();
    outcome.loss += loss.item<double>();
    for (std::size_t s = 0; s < 2; ++s)
      outcome.sums[s] += sums[static_cast<std::int64_t>(s)].item<double>();
  }
  for (auto& parameter : parameters)
    if (parameter.tensor.grad().defined())
      outcome.gradients[parameter.name] = parameter.tensor.grad().clone();
  return outcome;
}

void expect_same(const Outcome& a, const Outcome& b) {
  EXPECT_NEAR(a.loss, b.loss, 1e-6 * std::max(1.0, b.loss));
  for (std::size_t s = 0; s < 2; ++s)
    EXPECT_NEAR(a.sums[s], b.sums[s], 2e-6 * std::max(1.0, b.sums[s]));
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  ASSERT_GT(a.gradients.size(), 10U);
  double largest = 0;
  for (const auto& [name, gradient] : b.gradients)
    largest = std::max(largest, gradient.abs().max().item<double>());
  ASSERT_GT(largest, 1e-2);
  for (const auto& [name, gradient] : b.gradients) {
    const double scale = std::max(gradient.abs().max().item<double>(), 0.01 * largest);
    EXPECT_LE(test::largest_difference(a.gradients.at(name), gradient), 1e-5 * scale) << name;
  }
}

class Packed : public testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  void SetUp() override {
    const auto [name, immediate] = GetParam();
    golden = test::whole_golden_model(name, [immediate = immediate](models::ModelConfig& config) {
      config.only_attend_immediate_media = immediate;
    });
    tokens = {*golden.config.media_token_id, *golden.config.endofchunk_token_id};
    pages = rows_of(kPages, tokens, kSlots, 5);
    pairs = rows_of(kPairs, tokens, 1, 6);
  }
  PackedBatch padded(const Rows& rows, std::int64_t source) const {
    return models::from_rows(rows.ids, rows.mask, rows.labels, rows.images, /*keep_padding=*/true,
                             source);
  }
  PackedBatch packed(const Rows& rows, std::int64_t source) const {
    return models::from_rows(rows.ids, rows.mask, rows.labels, rows.images, /*keep_padding=*/false,
                             source);
  }

  test::GoldenModel golden;
  Tokens tokens;
  Rows pages, pairs;
};

TEST_P(Packed, EqualsPadded) {
  const Outcome expected = run(golden, {padded(pairs, 0), padded(pages, 1)});
  expect_same(run(golden, {packed(pairs, 0), packed(pages, 1)}), expected);
}

TEST_P(Packed, ZeroImagesOnDemand) {
  const PackedBatch explicit_zeros = packed(pages, 1),
                    on_demand = without_zero_images(packed(pages, 1), kPages);
  EXPECT_EQ(explicit_zeros.num_images(), 21);
  EXPECT_EQ(on_demand.num_images(), 9);
  EXPECT_EQ(models::prepare(golden.model(), on_demand, {})->images.size(0), 10)
      << "one zero image, at the end";
  expect_same(run(golden, {on_demand}), run(golden, {explicit_zeros}));
}

TEST_P(Packed, OnePassEqualsTwo) {
  const Outcome expected = run(golden, {padded(pairs, 0), padded(pages, 1)});
  const PackedBatch slim = without_zero_images(packed(pages, 1), kPages);
  expect_same(run(golden, {models::concatenate(packed(pairs, 0), slim)}), expected);
  expect_same(run(golden, {models::concatenate(slim, packed(pairs, 0))}), expected);
  // Padded and packed parts may be mixed as well.
  expect_same(run(golden, {models::concatenate(padded(pairs, 0), slim)}), expected);
}

TEST_P(Packed, RowsDoNotMix) {
  // Each row alone, with its share of the loss, adds up to all of them together.
  const PackedBatch all = packed(pages, 1);
  std::vector<PackedBatch> single;
  models::InputOptions how;
  how.loss.divisor = {1, 1};
  const double together =
      std::get<0>(models::training_loss(golden.model(), models::prepare(golden.model(), all, how)))
          .item<double>();
  double sum = 0;
  for (std::int64_t row = 0; row < pages.ids.size(0); ++row) {
    const Rows one{pages.ids.narrow(0, row, 1), pages.mask.narrow(0, row, 1),
                   pages.labels.narrow(0, row, 1), pages.images.narrow(0, row, 1)};
    sum += std::get<0>(models::training_loss(golden.model(),
                                             models::prepare(golden.model(), packed(one, 1), how)))
               .item<double>();
  }
  EXPECT_NEAR(together, sum, 2e-6 * sum);
}

TEST_P(Packed, NoImageAndNoLabelAnywhere) {
  Rows texts = rows_of({{{}, 0, 9}, {{}, 0, 5}}, tokens, 0, 7);
  PackedBatch batch = models::from_rows(texts.ids, texts.mask, texts.labels, {}, false, 1);
  Outcome outcome = run(golden, {batch});
  EXPECT_GT(outcome.loss, 0);
  batch.labels.fill_(kNoLabel);
  outcome = run(golden, {batch});
  EXPECT_EQ(outcome.loss, 0);
  for (const auto& [name, gradient] : outcome.gradients)
    EXPECT_EQ(gradient.abs().max().item<double>(), 0) << name;
}

// What is left of padding at the left, in either form.
TEST_P(Packed, PaddingAtTheLeft) {
  Rows rows = pages;
  for (std::int64_t row = 0; row < rows.ids.size(0); ++row) {
    const std::int64_t pad = kLength - kPages[static_cast<std::size_t>(row)].length;
    for (at::Tensor* tensor : {&rows.ids, &rows.mask, &rows.labels})
      (*tensor)[row] = (*tensor)[row].roll({pad});
  }
  const Outcome expected = run(golden, {packed(pages, 1)});
  expect_same(run(golden, {packed(rows, 1)}), expected);
  expect_same(run(golden, {padded(rows, 1)}), expected);
}

INSTANTIATE_TEST_SUITE_P(Models, Packed,
                         testing::Combine(testing::Values("opt_x1", "neox_x2"), testing::Bool()),
                         [](const auto& info) {
                           return std::get<0>(info.param) +
                                  (std::get<1>(info.param) ? "" : "_all_previous");
                         });

TEST(Prepare, RefusesWhatTheModelDoesNotHave) {
  const auto golden = test::whole_golden_model("opt_x1");
  const auto refuses = [&](const std::string& part,
                           const std::function<void(PackedBatch&)>& spoil) {
    const auto batches = test::golden_tensors("opt_x1-train/batches.safetensors");
    PackedBatch batch = test::golden_batch(batches, 0, "laion");
    spoil(batch);
    try {
      models::prepare(golden.model(), batch, {});
      ADD_FAILURE() << part;
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  refuses("token 117 ", [](PackedBatch& batch) { batch.ids[3] = 117; });
  refuses("token -1 ", [](PackedBatch& batch) { batch.ids[3] = -1; });
  refuses("label 117 ", [](PackedBatch& batch) { batch.labels[3] = 117; });
  refuses("label -7 ", [](PackedBatch& batch) { batch.labels[3] = -7; });
  refuses("positions", [](PackedBatch& batch) { batch.positions[3] = 100000; });
}

}  // namespace
}  // namespace floe::packed_test
