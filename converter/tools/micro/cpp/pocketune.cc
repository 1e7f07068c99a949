#include "pocketune.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "tensorflow/lite/schema/schema_generated.h"

namespace pocketune {
namespace {

// What the bounds of a target are exceeded by at most, as everywhere in Pocketune.
constexpr float kSlack = 1e-6f;

// Whether a number is finite. Kernels of TensorFlow Lite Micro make the largest one of infinity.
bool is_finite(float number) { return std::fabs(number) < std::numeric_limits<float>::max(); }

// Copies the numbers of a row into an input, as int8 where it takes these. False where one is NaN or infinite.
bool put(const Value& value, const TfLiteTensor& input, uint8_t* to, uint32_t bytes) {
  const bool quantizes = input.type == kTfLiteInt8 && input.params.scale != 0.0f && !value.stored;
  if (!quantizes) std::memcpy(to, value.data, bytes);
  if (!quantizes && input.type != kTfLiteFloat32) return true;
  const uint8_t* from = static_cast<const uint8_t*>(value.data);
  for (uint32_t n = 0; n < (quantizes ? bytes : bytes / sizeof(float)); ++n) {
    float number;
    std::memcpy(&number, from + sizeof(float) * n, sizeof number);
    if (!is_finite(number)) return false;
    if (quantizes) to[n] = static_cast<uint8_t>(quantized(number, input.params.scale, input.params.zero_point));
  }
  return true;
}

bool fits(const Target& target, const void* numbers) {
  for (uint32_t i = 0; i < target.count; ++i) {
    if (target.type == Type::kInt32) {
      int32_t label;
      std::memcpy(&label, static_cast<const uint8_t*>(numbers) + 4 * i, sizeof label);
      const bool known = (target.labels == 0 || label < target.labels) && (target.masked || label >= 0);
      if (!known && !(target.has_ignored && label == target.ignored)) return false;
      continue;
    }
    float number;
    std::memcpy(&number, static_cast<const uint8_t*>(numbers) + 4 * i, sizeof number);
    if (target.only_count == 0) {
      if (!(number >= target.least - kSlack && number <= target.most + kSlack)) return false;
      continue;
    }
    bool found = false;
    for (uint8_t j = 0; j < target.only_count; ++j) found = found || number == target.only[j];
    if (!found) return false;
  }
  return true;
}

}  // namespace

int8_t quantized(float number, float scale, int32_t zero_point) {
  const float place = std::round(number / scale) + static_cast<float>(zero_point);
  return place >= 127.0f ? 127 : place > -128.0f ? static_cast<int8_t>(place) : -128;
}

const char* message(Status status) {
  switch (status) {
    case Status::kOk: return "ok";
    case Status::kArenaTooSmall: return "the arena is too small: give begin() kArenaBytes";
    case Status::kNotBegun: return "begin() has not succeeded";
    case Status::kRows: return "no row, more rows than a step takes, or not all where rows influence each other";
    case Status::kTarget: return "a label or number that the loss does not take";
    case Status::kRow: return "a number of a row is NaN or infinite";
    case Status::kNotFinite: return "a number is NaN or infinite, often because the learning rate is too high";
    case Status::kFailed: return "an operator failed: see the log of TensorFlow Lite Micro";
    case Status::kNoState: return "no saved state";
    case Status::kForeign: return "the storage holds the state of another program, or something else";
    case Status::kStorage: return "the storage failed";
  }
  return "";
}

Session::Session(const Program& program, uint8_t* state, uint8_t* gradients, uint8_t* features)
    : learning_rate(program.learning_rate),
      program_(program),
      state_(state),
      gradients_(gradients),
      features_(features) {}

Session::~Session() { release(); }

void Session::release() {
  if (interpreter_ != nullptr) interpreter_->~MicroInterpreter();
  interpreter_ = nullptr;
  current_ = nullptr;
}

void Session::reset() {
  for (uint8_t i = 0; i < program_.tensor_count; ++i) {
    const StateTensor& tensor = program_.tensors[i];
    const uint32_t size = tensor.type == Type::kBool ? 1 : 4;
    if (!tensor.repeats) std::memcpy(state_ + tensor.offset, tensor.initial, tensor.bytes);
    for (uint32_t at = 0; tensor.repeats && at < tensor.bytes; at += size) {
      std::memcpy(state_ + tensor.offset + at, tensor.initial, size);
    }
  }
  pending_ = 0;
}

Status Session::begin(uint8_t* arena, size_t size) {
  release();
  arena_ = nullptr;
  arena_used_ = 0;
  if (arena == nullptr || size < program_.least_arena) return Status::kArenaTooSmall;
  arena_ = arena;
  arena_size_ = size;
  reset();
  const Signature* const all[] = {&program_.infer, &program_.evaluate, &program_.features, &program_.apply,
                                  &program_.step};
  for (const Signature* signature : all) {
    if (signature->model == nullptr) continue;
    const Status status = select(*signature);
    if (status != Status::kOk) {
      arena_ = nullptr;
      return status;
    }
    if (interpreter_->arena_used_bytes() > arena_used_) arena_used_ = interpreter_->arena_used_bytes();
  }
  return Status::kOk;
}

// One signature at a time is set up in the arena, so that it is no larger than the largest of them needs.
Status Session::select(const Signature& signature) {
  if (arena_ == nullptr || signature.model == nullptr) return Status::kNotBegun;
  if (current_ == &signature) return Status::kOk;
  release();
  interpreter_ = new (room_)
      tflite::MicroInterpreter(tflite::GetModel(signature.model), program_.operators(), arena_, arena_size_);
  if (interpreter_->AllocateTensors() != kTfLiteOk) {
    release();
    return Status::kArenaTooSmall;
  }
  current_ = &signature;
  return Status::kOk;
}

// False where a number of a row is NaN or infinite: what computes in int8 from there on would not show it.
bool Session::fill(const Signature& signature, const Call& call) {
  for (uint8_t i = 0; i < signature.input_count; ++i) {
    const Binding& binding = signature.inputs[i];
    uint8_t* to = interpreter_->input(i)->data.uint8;
    const uint32_t row = binding.bytes / (signature.rows ? signature.rows : 1);
    switch (binding.role) {
      case Role::kValue:
        // Rows that are missing are copies of the first, of weight 0: numbers that the model can compute with.
        for (size_t r = 0; r < signature.rows; ++r) {
          const Value& value = call.rows[(r < call.count ? r : 0) * call.values + binding.index];
          if (!put(value, *interpreter_->input(i), to + r * row, row)) return false;
        }
        break;
      case Role::kWeight:
        for (size_t r = 0; r < signature.rows; ++r) {
          const float weight = r < call.count ? call.weight : 0.0f;
          std::memcpy(to + 4 * r, &weight, sizeof weight);
        }
        break;
      case Role::kRate: std::memcpy(to, &learning_rate, sizeof learning_rate); break;
      case Role::kState: std::memcpy(to, state_ + program_.tensors[binding.index].offset, binding.bytes); break;
      case Role::kGradient: std::memcpy(to, gradients_ + program_.gradients[binding.index], binding.bytes); break;
      case Role::kFeature:
        for (size_t r = 0; r < signature.rows; ++r) {
          const uint8_t* from = call.features + (r < call.count ? r : 0) * program_.feature_bytes;
          std::memcpy(to + r * row, from + program_.feature_offsets[binding.index], row);
        }
        break;
      case Role::kResult: break;
    }
  }
  return true;
}

// Whether all numbers of the state and of gradients that a call gave are finite: a loss may be where they are not.
bool Session::finite(const Signature& signature) const {
  for (uint8_t i = 0; i < signature.output_count; ++i) {
    const Binding& binding = signature.outputs[i];
    const bool state = binding.role == Role::kState && program_.tensors[binding.index].type == Type::kFloat32;
    if (!state && binding.role != Role::kGradient) continue;
    const float* numbers = interpreter_->output(i)->data.f;
    for (uint32_t n = 0; n < binding.bytes / sizeof(float); ++n) {
      if (!is_finite(numbers[n])) return false;
    }
  }
  return true;
}

// Takes over the state and the gradients that a call gave.
void Session::keep(const Signature& signature) {
  for (uint8_t i = 0; i < signature.output_count; ++i) {
    const Binding& binding = signature.outputs[i];
    const uint8_t* from = interpreter_->output(i)->data.uint8;
    if (binding.role == Role::kState) std::memcpy(state_ + program_.tensors[binding.index].offset, from, binding.bytes);
    if (binding.role == Role::kGradient) {
      std::memcpy(gradients_ + program_.gradients[binding.index], from, binding.bytes);
    }
  }
}

float Session::result(const Signature& signature, uint8_t index) const {
  for (uint8_t i = 0; i < signature.output_count; ++i) {
    const Binding& binding = signature.outputs[i];
    if (binding.role == Role::kResult && binding.index == index) return interpreter_->output(i)->data.f[0];
  }
  return 0.0f;
}

Status Session::invoke(const Signature& signature, const Call& call) {
  const Status status = select(signature);
  if (status != Status::kOk) return status;
  if (!fill(signature, call)) return Status::kRow;
  return interpreter_->Invoke() == kTfLiteOk ? Status::kOk : Status::kFailed;
}

Status Session::check(const Value* rows, size_t count) const {
  for (size_t r = 0; r < count; ++r) {
    for (uint8_t t = 0; t < program_.target_count; ++t) {
      const Target& target = program_.targets[t];
      if (!fits(target, rows[r * program_.values + target.value].data)) return Status::kTarget;
    }
  }
  return Status::kOk;
}

Status Session::features(const Value* row, void* to) {
  const Signature& signature = program_.features;
  const Status status = invoke(signature, {row, program_.values, 1, 1.0f});
  if (status != Status::kOk) return status;
  for (uint8_t i = 0; i < signature.output_count; ++i) {
    const Binding& binding = signature.outputs[i];
    if (binding.role != Role::kFeature) continue;
    uint8_t* place = static_cast<uint8_t*>(to) + program_.feature_offsets[binding.index];
    std::memcpy(place, interpreter_->output(i)->data.uint8, binding.bytes / signature.rows);
  }
  return Status::kOk;
}

Status Session::add_up(const Call& call, float* loss) {
  const Status status = invoke(program_.step, call);
  if (status != Status::kOk) return status;
  const float share = result(program_.step, 0);
  if (!is_finite(share) || !finite(program_.step)) {
    pending_ = 0;
    return Status::kNotFinite;
  }
  keep(program_.step);
  *loss += share;
  return Status::kOk;
}

Status Session::update() {
  pending_ = 0;
  const Status status = invoke(program_.apply, {nullptr, 0, 0, 0.0f});
  if (status != Status::kOk) return status;
  if (!finite(program_.apply)) return Status::kNotFinite;
  keep(program_.apply);
  return Status::kOk;
}

Status Session::train(const Value* rows, size_t count, float* loss) {
  const Signature& step = program_.step;
  if (count == 0 || count > program_.batch || (step.whole && count != program_.batch)) return Status::kRows;
  Status status = check(rows, count);
  float sum = 0.0f;
  if (program_.features.model != nullptr) {
    for (size_t r = 0; r < count && status == Status::kOk; ++r) {
      status = features(rows + r * program_.values, features_ + r * program_.feature_bytes);
    }
  }
  if (program_.apply.model == nullptr) {
    if (status == Status::kOk) status = add_up({rows, program_.values, count, 1.0f, features_}, &sum);
  } else {
    pending_ = 0;
    std::memset(gradients_, 0, program_.gradient_bytes);
    for (size_t at = 0; at < count && status == Status::kOk; at += step.rows) {
      const size_t part = count - at < step.rows ? count - at : step.rows;
      const uint8_t* known = features_ + at * program_.feature_bytes;
      status = add_up({rows + at * program_.values, program_.values, part, 1.0f / count, known}, &sum);
    }
    if (status == Status::kOk) status = update();
  }
  if (loss != nullptr && status == Status::kOk) *loss = sum;
  return status;
}

Status Session::add(const Value* row, float* loss, const void* known) {
  const bool sums = program_.apply.model != nullptr;
  if (!sums && program_.step.whole && program_.batch != 1) return Status::kRows;
  Status status = check(row, 1);
  if (status == Status::kOk && known != nullptr) std::memcpy(features_, known, program_.feature_bytes);
  if (status == Status::kOk && known == nullptr && program_.features.model != nullptr) status = features(row, features_);
  if (status != Status::kOk) return status;
  if (sums && pending_ == 0) std::memset(gradients_, 0, program_.gradient_bytes);
  const float weight = sums ? 1.0f / program_.batch : 1.0f;
  float share = 0.0f;
  status = add_up({row, program_.values, 1, weight, features_}, &share);
  if (status != Status::kOk) return status;
  if (loss != nullptr) *loss = share / weight;
  return sums && ++pending_ == program_.batch ? update() : Status::kOk;
}

Status Session::evaluate(const Value* rows, size_t count, float* figures) {
  const Signature& signature = program_.evaluate;
  if (count == 0 || (signature.whole && count % signature.rows != 0)) return Status::kRows;
  Status status = check(rows, count);
  for (uint8_t i = 0; i < program_.figures; ++i) figures[i] = 0.0f;
  for (size_t at = 0; at < count && status == Status::kOk; at += signature.rows) {
    const size_t part = count - at < signature.rows ? count - at : signature.rows;
    status = invoke(signature, {rows + at * program_.values, program_.values, part, 1.0f});
    if (status != Status::kOk) return status;
    // The loss is a mean of rows, what is counted is a sum.
    for (uint8_t i = 0; i < program_.figures; ++i) figures[i] += result(signature, i) * (i == 0 ? part : 1);
  }
  for (uint8_t i = 0; i < program_.figures; ++i) figures[i] /= count;
  return status == Status::kOk && !is_finite(figures[0]) ? Status::kNotFinite : status;
}

Status Session::infer(const Value* rows, size_t values, size_t count, void* const* results) {
  const Signature& signature = program_.infer;
  if (count == 0 || count > signature.rows || (signature.whole && count != signature.rows)) return Status::kRows;
  const Status status = invoke(signature, {rows, values, count, 1.0f});
  if (status != Status::kOk) return status;
  for (uint8_t i = 0; i < signature.output_count; ++i) {
    const Binding& binding = signature.outputs[i];
    const uint32_t bytes = binding.bytes / signature.rows * count;
    std::memcpy(results[binding.index], interpreter_->output(i)->data.uint8, bytes);
  }
  return Status::kOk;
}

}  // namespace pocketune
