// See micro_interpreter.h.
#ifndef STUB_MICRO_OP_RESOLVER_H_
#define STUB_MICRO_OP_RESOLVER_H_
namespace tflite {
class MicroOpResolver {};
}  // namespace tflite
#endif  // STUB_MICRO_OP_RESOLVER_H_
