// What lies in an official dump folder: layer_<L>/{q,k,v,seq_lens}/<chunk>.pt.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "oscar/core/dtype.h"
#include "oscar/core/layer.h"
#include "oscar/dump/import_plan.h"
#include "oscar/torchfile/torchfile.h"

namespace oscar {

// Where the rows of a tensor lie, whatever its layout: element (t, h, d) is at
// offset + t * token + h * head + d * dim_stride, in elements of the storage.
struct RowsLayout {
  int64_t tokens = 0, heads = 0, dim = 0;
  int64_t offset = 0, token = 0, head = 0, dim_stride = 0;

  // [T, heads, dim] without gaps.
  bool contiguous() const { return dim_stride == 1 && head == dim && token == heads * dim; }
};

// Reads the tensor of a file. The CRC-32 of its bytes is not compared, as torch.load does not:
// dumps are large, and that pass would cost a tenth of the import. Throws Error(kFormat) naming the
// file when it holds something else.
TorchTensor ReadDumpTensor(const std::filesystem::path& file);

// Accepts [T, H, D], [T, H * D] and [1, H, T, D]. Throws Error(kFormat) naming the file, the shape
// and the accepted layouts when `heads` does not fit: nothing is guessed from sizes.
RowsLayout LayoutOf(const TorchTensor& tensor, int64_t heads, const std::filesystem::path& file);

struct ImportSurvey {
  std::filesystem::path folder;
  std::vector<int> layers;  // ascending, those that were asked for
  int64_t layers_found = 0;
  std::vector<ImportChunk> chunks;  // the same for all layers
  std::map<int, LayerShape> shapes;
  std::map<int, std::string> fingerprints;  // SHA-256 over names, sizes, heads and tails of files
  DType dtype = DType::kBF16;               // of q, k, v
  int64_t bytes = 0;                        // of all files of the layers
  std::vector<std::filesystem::path> ignored;  // files and folders that are no part of a dump

  std::filesystem::path File(int layer, const char* part, int64_t chunk) const;
};

// Looks at every file of the layers that `layer_list` names (see SelectLayers) without reading
// rows. Throws Error(kIo / kFormat / kMismatch) naming layer, part and chunk: folders that start
// like a layer's but are not named layer_<number>, two folders of one layer, missing chunks,
// layers with other chunks or token counts than the first, head counts that do not fit, row counts
// below the sum of seq_lens.
ImportSurvey SurveyDump(const std::filesystem::path& folder, const std::string& layer_list,
                        int64_t q_heads, int64_t kv_heads, double softmax_scale);

}  // namespace oscar
