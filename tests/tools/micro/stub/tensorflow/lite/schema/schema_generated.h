// See micro_interpreter.h.
#ifndef STUB_SCHEMA_GENERATED_H_
#define STUB_SCHEMA_GENERATED_H_
#include "tensorflow/lite/micro/micro_interpreter.h"
namespace tflite {
inline const Model* GetModel(const void*) { return nullptr; }
}  // namespace tflite
#endif  // STUB_SCHEMA_GENERATED_H_
