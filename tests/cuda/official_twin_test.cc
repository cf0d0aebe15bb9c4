// The kernels' CPU twins on what the public kernels read and wrote: official_vectors/quant byte for
// byte, official_vectors/decode within the public kernels' own roundings.
#include <gtest/gtest.h>

#include "gpu/decode_vectors.h"
#include "gpu/write_vectors.h"
#include "oscar/core/error.h"

namespace oscar::test {
namespace {

TEST(OfficialTwin, WritersBytes) {
  WriteVectorReader reader;
  int64_t cases = 0;
  for (const WriteVector& v : reader.Read()) {
    WrittenBytes found(v);
    WriteJob job = v.Job();
    job.rows = v.rows.data();
    job.source_slots = {v.source.data(), DType::kI64};
    job.slots = {v.target.data(), DType::kI64};
    job.codes = found.codes.data();
    job.scales = found.scales.data();
    WriteTwin(v.shape, {&job, 1});
    ExpectOfficial(v, found);
    ++cases;
  }
  EXPECT_GT(cases, 0) << "no case in " << OfficialVectors() / "quant";
  RecordProperty("cases", static_cast<int>(cases));
  RecordProperty("lloyd_max_cases_without_kernel", static_cast<int>(reader.lloyd_cases));
}

TEST(OfficialTwin, DecodeAttention) {
  int64_t cases = 0;
  for (DecodeVector& v : ReadDecodeVectors()) {
    // First that bytes, slots and windows are understood: to the rounding of the stored float64.
    const Distance understood = Compare(PublicReference(v.c), v.reference);
    EXPECT_LE(understood.output, 1e-6) << v.name;
    EXPECT_LE(understood.lse, 1e-5) << v.name;
    for (const int64_t blocks : {1, 7, 60}) {
      DecodeResult found{std::vector<float>(static_cast<size_t>(v.c.outputs())),
                         std::vector<float>(static_cast<size_t>(v.c.rows()))};
      DecodeTwin(v.c.shape, PlanDecode(v.c.shape, v.c.lengths, blocks), v.c.HostInputs(),
                 {found.o.data(), DType::kF32, found.lse.data()});
      ExpectNearOfficial(v, found, std::to_string(blocks) + " blocks");
    }
    ++cases;
  }
  EXPECT_GT(cases, 0) << "no case in " << OfficialVectors() / "decode";
}

}  // namespace
}  // namespace oscar::test
