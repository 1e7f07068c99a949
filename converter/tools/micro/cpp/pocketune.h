// A session of a training program in TensorFlow Lite Micro: C++17 without heap, exceptions or RTTI.
//
// `pocketune_model.h` declares `Model`, which is a Session of the exported program with functions for its rows. No function
// may be called from two threads or an interrupt at a time.
#ifndef POCKETUNE_H_
#define POCKETUNE_H_

#include <cstddef>
#include <cstdint>

#include "tensorflow/lite/micro/micro_interpreter.h"
#include "tensorflow/lite/micro/micro_op_resolver.h"

namespace pocketune {

enum class Status : uint8_t {
  kOk,
  kArenaTooSmall,  // the arena holds not all signatures of the program
  kNotBegun,       // begin() has not succeeded
  kRows,           // no row, more rows than a step takes, or fewer where rows of a batch influence each other
  kTarget,         // a label or number that the loss does not take
  kRow,            // a number of a row that the model takes is NaN or infinite
  kNotFinite,      // the loss, a number of the new state, or one to save, is NaN or infinite; the state is as before
  kFailed,         // an operator failed; TensorFlow Lite Micro has logged which
  kNoState,        // neither generation is a good state
  kForeign,        // a generation is the state of another program, or no state
  kStorage,        // the storage failed, or gave back other bytes than were written
};

// What a status means, in words.
const char* message(Status status);

// Where saved states lie: two places, 0 and 1, of kStateFileBytes each. Functions return whether they succeeded.
struct Storage {
  void* context;
  // Reads bytes of a place. False where it has not as many.
  bool (*read)(void* context, int place, uint32_t offset, void* to, uint32_t count);
  // Makes a place ready for so many bytes: erases it, or opens its file anew.
  bool (*begin)(void* context, int place, uint32_t size);
  // Writes the next bytes, one call behind the other.
  bool (*write)(void* context, int place, uint32_t offset, const void* from, uint32_t count);
  // All are written: flushes them.
  bool (*end)(void* context, int place);
};

// Numbers of a row: as the program has them or, where it makes int8 of them first, as these (`stored`).
struct Value {
  const void* data;
  bool stored = false;
};

// The int8 that stands for a number; the least one for NaN.
int8_t quantized(float number, float scale, int32_t zero_point);

// What an input of a signature is filled with, or what an output is.
enum class Role : uint8_t { kValue, kWeight, kRate, kState, kGradient, kResult, kFeature };

struct Binding {
  Role role;
  uint8_t index;   // of the value, state tensor, gradient, result or feature
  uint32_t bytes;  // of the whole tensor
};

// An entry point of the program; `model` is null where the program has none.
struct Signature {
  const uint8_t* model;
  uint16_t rows;
  bool whole;  // whether rows influence each other, so that all have to be given
  uint8_t input_count, output_count;
  const Binding *inputs, *outputs;
};

enum class Type : uint8_t { kFloat32, kInt32, kBool };

// A tensor that outlives a step.
struct StateTensor {
  Type type;
  uint32_t offset, bytes;  // in the state as it is in memory
  const uint8_t* initial;
  bool repeats;      // whether `initial` is one element, which all others equal
  int32_t channels;  // its numbers are different channels of so many; 0: they are none
  uint32_t padding;  // zeros in front of it in a state file
};

// What the loss takes for the numbers of a target. Rows have `count` of them, at `value` among their values.
struct Target {
  uint8_t value;
  Type type;
  uint32_t count;
  int32_t labels;  // labels are 0 to one less; 0: any
  bool masked;     // whether labels below 0 are left out
  bool has_ignored;
  int32_t ignored;
  float least, most;
  uint8_t only_count;
  const float* only;
};

struct Program {
  const tflite::MicroOpResolver& (*operators)();
  uint32_t least_arena;  // bytes; kernels do not check whether they got what they keep in an arena
  // `apply` where a step is several calls of `step` and one of it; `features` where `step` takes what that gives.
  Signature step, apply, evaluate, infer, features;
  uint16_t batch;
  uint8_t values;      // of a row: inputs of the model, then targets
  uint8_t figures;     // of `evaluate`: the loss, and what is counted
  float learning_rate;
  uint8_t tensor_count, gradient_count, target_count;
  const StateTensor* tensors;
  const uint32_t* gradients;  // where each begins
  const Target* targets;
  uint32_t state_bytes, gradient_bytes;
  uint32_t feature_bytes;           // of one row
  const uint32_t* feature_offsets;  // where each begins there
  const char* const* header;  // of a state file: pieces, between which the generation and the digests of tensors stand
  uint32_t header_bytes;      // of all pieces
};

class Session {
 public:
  Session(const Program& program, uint8_t* state, uint8_t* gradients, uint8_t* features);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Takes an arena of kArenaBytes, which must outlive the session, and tries every signature in it. The state is as built.
  // One of less than kLeastArenaBytes is refused before the interpreter sees it.
  Status begin(uint8_t* arena, size_t size);
  // The state as the program was built with it.
  void reset();

  // The learning rate of a step; it multiplies the rate of a program that computes its own.
  float learning_rate;

  // Writes the state as the next generation, over the older of the two; power may fail at any moment.
  Status save(const Storage& storage);
  // Takes the newest good generation; the state stays as it is where there is none.
  Status load(const Storage& storage);
  // The generation that was saved or loaded last; 0: none.
  uint64_t generation() const { return generation_; }

  // A tensor of the state, in the order of the program's manifest.
  const void* tensor(size_t index) const { return state_ + program_.tensors[index].offset; }
  // The largest arena that a signature has taken.
  size_t arena_used() const { return arena_used_; }

 protected:
  // `rows`: the values of each row, one row behind the other. `features`: of the row, where they are known; what
  // the model takes of it is not read then.
  Status train(const Value* rows, size_t count, float* loss);
  Status add(const Value* row, float* loss, const void* features = nullptr);
  Status features(const Value* row, void* to);
  Status evaluate(const Value* rows, size_t count, float* figures);
  Status infer(const Value* rows, size_t values, size_t count, void* const* results);

 private:
  struct Call {
    const Value* rows;
    size_t values, count;  // values of a row; rows
    float weight;          // of each row
    const uint8_t* features = nullptr;
  };
  Status select(const Signature& signature);
  Status invoke(const Signature& signature, const Call& call);
  Status add_up(const Call& call, float* loss);
  Status update();
  bool fill(const Signature& signature, const Call& call);
  bool finite(const Signature& signature) const;
  void keep(const Signature& signature);
  float result(const Signature& signature, uint8_t index) const;
  Status check(const Value* rows, size_t count) const;
  void release();

  const Program& program_;
  uint8_t *state_, *gradients_, *features_, *arena_ = nullptr;
  size_t arena_size_ = 0, arena_used_ = 0;
  uint16_t pending_ = 0;  // rows whose gradients wait for an update
  uint64_t generation_ = 0;
  const Signature* current_ = nullptr;
  tflite::MicroInterpreter* interpreter_ = nullptr;
  alignas(tflite::MicroInterpreter) uint8_t room_[sizeof(tflite::MicroInterpreter)];
};

}  // namespace pocketune

#endif  // POCKETUNE_H_
