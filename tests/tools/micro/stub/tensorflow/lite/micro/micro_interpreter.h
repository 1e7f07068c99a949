// An interpreter that computes nothing, for tests of what stands around it.
#ifndef STUB_MICRO_INTERPRETER_H_
#define STUB_MICRO_INTERPRETER_H_
#include <cstddef>
#include <cstdint>
#include "tensorflow/lite/micro/micro_op_resolver.h"
enum TfLiteStatus { kTfLiteOk, kTfLiteError };
struct TfLiteTensor {
  union {
    uint8_t* uint8;
    float* f;
  } data;
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
