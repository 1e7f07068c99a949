// An interpreter that computes nothing, for tests of what stands around it.
#ifndef STUB_MICRO_INTERPRETER_H_
#define STUB_MICRO_INTERPRETER_H_
#include <cstddef>
#include <cstdint>
#include "tensorflow/lite/micro/micro_op_resolver.h"
enum TfLiteStatus { kTfLiteOk, kTfLiteError };
enum TfLiteType { kTfLiteFloat32 = 1, kTfLiteInt8 = 9 };
struct TfLiteQuantizationParams {
  float scale;
  int32_t zero_point;
};
struct TfLiteTensor {
  TfLiteType type;
  union {
    uint8_t* uint8;
    float* f;
  } data;
  TfLiteQuantizationParams params;
};
namespace tflite {
struct Model {};
class MicroInterpreter {
 public:
  MicroInterpreter(const Model*, const MicroOpResolver&, uint8_t*, size_t) {}
  TfLiteStatus AllocateTensors() { return kTfLiteOk; }
  TfLiteStatus Invoke() { return kTfLiteError; }
  TfLiteTensor* input(size_t) { return &tensor_; }
  TfLiteTensor* output(size_t) { return &tensor_; }
  size_t arena_used_bytes() const { return 0; }

 private:
  TfLiteTensor tensor_ = {};
};
}  // namespace tflite
#endif  // STUB_MICRO_INTERPRETER_H_
