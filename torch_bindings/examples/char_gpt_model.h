// What char_gpt trains, and on what: a text as numbers, pieces of it, and a small GPT.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "horon/core/base/error.h"
#include "horon/torch_bindings/modules/activation_checkpoint.h"

namespace example {

struct GptShape {
  int64_t layers = 4, width = 128, heads = 4, context = 128;
  double dropout = 0.1;
};

// Pieces of a text, each one letter longer than the context: all but the last letter are the input,
// all but the first the target.
class Pieces : public torch::data::datasets::BatchDataset<Pieces, at::Tensor> {
 public:
  // They begin `stride` letters apart.
  Pieces(at::Tensor text, int64_t context, int64_t stride)
      : text_(std::move(text)), context_(context), stride_(stride) {}
  // int64 [n, context + 1]
  at::Tensor get_batch(c10::ArrayRef<size_t> pieces) override {
    std::vector<at::Tensor> rows;
    for (const size_t piece : pieces) {
      rows.push_back(text_.narrow(0, static_cast<int64_t>(piece) * stride_, context_ + 1));
    }
    return torch::stack(rows);
  }
  std::optional<size_t> size() const override {
    return static_cast<size_t>((text_.size(0) - context_ - 1) / stride_ + 1);
  }

 private:
  at::Tensor text_;
  int64_t context_, stride_;
};

// A text as numbers of the letters (bytes) that occur in it. Its last tenth is held out.
struct Corpus {
  Corpus(const std::string& text, int64_t context) {
    std::vector<int64_t> number(256, -1), codes;
    for (const char letter : text) number[static_cast<uint8_t>(letter)] = 0;
    for (size_t byte = 0; byte < number.size(); ++byte) {
      if (number[byte] < 0) continue;
      number[byte] = static_cast<int64_t>(letters.size());
      letters += static_cast<char>(byte);
    }
    for (const char letter : text) codes.push_back(number[static_cast<uint8_t>(letter)]);
    const at::Tensor all = torch::tensor(codes, torch::kLong);
    const int64_t held_out_from = all.size(0) * 9 / 10;
    training = all.slice(0, 0, held_out_from);
    held_out = all.slice(0, held_out_from);
    if (held_out.size(0) <= context) {
      throw horon::Error(horon::ErrorCode::InvalidArgument,
                         "the text is too short: a tenth of it must be longer than --context");
    }
  }

  // uint8 [kinds], for a checkpoint.
  at::Tensor letter_codes() const {
    const std::vector<int64_t> codes(letters.begin(), letters.end());
    return torch::tensor(codes, torch::kLong).to(torch::kByte);
  }
  Pieces pieces(int64_t context) const { return {training, context, 1}; }

  std::string letters;            // each once, in the order of their bytes
  at::Tensor training, held_out;  // int64 [n]
};

// One layer: attention to the letters before, then a network of each letter.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const GptShape& shape)
      : heads(shape.heads),
        norm1(register_module("norm1",
                              torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape.width})))),
        attend(register_module("attend", torch::nn::Linear(shape.width, 3 * shape.width))),
        project(register_module("project", torch::nn::Linear(shape.width, shape.width))),
        norm2(register_module("norm2",
                              torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape.width})))),
        grow(register_module("grow", torch::nn::Linear(shape.width, 4 * shape.width))),
        shrink(register_module("shrink", torch::nn::Linear(4 * shape.width, shape.width))),
        dropout(register_module("dropout", torch::nn::Dropout(shape.dropout))) {}

  at::Tensor forward(const at::Tensor& x) {
    const int64_t batch = x.size(0), letters = x.size(1), width = x.size(2);
    const at::Tensor parts =
        attend(norm1(x)).view({batch, letters, 3, heads, width / heads}).permute({2, 0, 3, 1, 4});
    const at::Tensor seen = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0,
                                                                /*is_causal=*/true);
    const at::Tensor y = x + dropout(project(seen.transpose(1, 2).reshape(x.sizes())));
    return y + dropout(shrink(torch::gelu(grow(norm2(y)))));
  }

  int64_t heads;
  torch::nn::LayerNorm norm1;
  torch::nn::Linear attend, project;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear grow, shrink;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(Block);

struct GptImpl : torch::nn::Module {
  GptImpl(const GptShape& shape, int64_t letters)
      : embed(register_module("embed", torch::nn::Embedding(letters, shape.width))),
        places(register_module("places", torch::nn::Embedding(shape.context, shape.width))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        norm(register_module("norm",
                             torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape.width})))) {
    for (int64_t i = 0; i < shape.layers; ++i) blocks->push_back(Block(shape));
    torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters()) {
      if (parameter.dim() > 1) parameter.normal_(0, 0.02);
    }
  }

  // Numbers of letters [n, m] to logits of the next ones [n, m, letters]. The embedding is also the
  // last matrix.
  at::Tensor forward(const at::Tensor& text) {
    at::Tensor x = embed(text) + places(torch::arange(text.size(1), text.options()));
    for (const auto& module : *blocks) {
      const auto block = std::dynamic_pointer_cast<BlockImpl>(module);
      x = is_training() ? horon::checkpoint(block, x) : block->forward(x);
    }
    return torch::linear(norm(x), embed->weight);
  }

  torch::nn::Embedding embed, places;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(Gpt);

}  // namespace example
